"""What a step of a small net costs beside its arithmetic: BC with two layers of 64 units.

    python -m scripts.bench.small_step [--quick] [--batch 16] [--rounds 20]

Each variant trains in separate processes, one for each rank: the unedited host's own script, ours,
and a loop around DDP that is written by hand. A step is everything from one `train_on_batch` to the
next: the loader, the host's logs, and what ours adds to them. Variants take turns: in a round each
takes some hundred steps, while the others wait.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from robomimic_ddp.terminal import whole_number
from scripts.bench import turns
from scripts.bench.ranks import Ranks
from tests.configs import make_config, write_config
from tests.datasets import make_hdf5
from tests.hosts import apply, copy_host, environment

HOST, OURS, BY_HAND = "host", "ours", "DDP by hand"
VARIANTS = {
    "host": (HOST, "", 1),
    "ours, safe": (OURS, "safe", 1),
    "ours, fast": (OURS, "fast", 1),
    "DDP by hand": (BY_HAND, "", 2),
    "DDP by hand, looking for unused parameters": (BY_HAND, "find_unused_parameters", 2),
    "ours, safe, 2 ranks": (OURS, "safe", 2),
    "ours, fast, 2 ranks": (OURS, "fast", 2),
}
"""Name -> who takes the step, preset or option, number of ranks."""
STEPS, QUICK_STEPS = 200, 100
"""Of a variant in a round."""
_WARM_UP = 2
_EPISODES = 40


class Turns:
    """In a worker: takes steps when asked to, and answers with the seconds of one."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")  # the host replaces sys.stdout
        self._left = self._count = 0
        self._begin = time.perf_counter(), time.process_time()

    def construct(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the host's model, whose steps wait for their turn."""
        model = factory(*args, **kwargs)
        train_on_batch = model.train_on_batch

        def step(*args: Any, **kwargs: Any) -> Any:
            self.wait()
            return train_on_batch(*args, **kwargs)

        model.train_on_batch = step
        return model

    def wait(self) -> None:
        """Returns when it is this process's turn; ends the process after the last one."""
        if not self._left:
            self._answer()
            line = sys.__stdin__.readline()
            if not line:
                os._exit(0)  # inside a step: nothing is saved
            self._left = self._count = int(line)
            self._begin = time.perf_counter(), time.process_time()
        self._left -= 1

    def _answer(self) -> None:
        times = zip((time.perf_counter(), time.process_time()), self._begin)
        answer = [(now - begin) / max(1, self._count) for now, begin in times]
        self._answers.write(f"\nbench {json.dumps(answer)}\n")  # the host draws a bar
        self._answers.flush()


def work(job: dict[str, Any]) -> None:
    """One rank's steps."""
    import robomimic.scripts.train as host_train

    from tests.e2e.entries.host_entry import train

    clock = Turns()
    if job["kind"] == BY_HAND:
        train_by_hand(job["config"], clock, **{job["option"]: True} if job["option"] else {})
    else:
        host_train.algo_factory = partial(clock.construct, host_train.algo_factory)
        train(job["config"])


def train_by_hand(file: str, clock: Turns, **ddp_options: Any) -> None:
    """Collective: the host's data, net and losses in a loop around torch's DDP."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    import robomimic.utils.train_utils as TrainUtils
    import torch
    from robomimic.algo import algo_factory
    from robomimic.config import config_factory
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    values = json.loads(Path(file).read_text())
    config = config_factory(values["algo_name"])
    with config.values_unlocked():
        config.update(values)
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = FileUtils.get_shape_metadata_from_dataset(
        config.train.data[0], config.train.action_keys, config.all_obs_keys
    )
    dataset, _ = TrainUtils.load_data_for_training(config, obs_keys=shapes["all_obs_keys"])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, config.train.batch_size, sampler=sampler, drop_last=True)
    with config.values_unlocked():
        for name in ("num_train_batches", "num_epochs"):
            config.algo.optim_params.policy[name] = 1
    model = algo_factory(
        config.algo_name, config, shapes["all_shapes"], shapes["ac_dim"], torch.device("cpu")
    )
    model.set_train()
    net = DistributedDataParallel(model.nets["policy"], **ddp_options)
    optimizer = model.optimizers["policy"]
    while True:
        for batch in loader:
            inputs = model.process_batch_for_training(batch)
            clock.wait()
            actions = net(obs_dict=inputs["obs"], goal_dict=None)
            loss = model._compute_losses({"actions": actions}, inputs)["action_loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()


class Team:
    """The ranks of one variant, until `stack` closes."""

    def __init__(self, bench: Bench, name: str, stack: ExitStack) -> None:
        kind, option, count = VARIANTS[name]
        output = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder)))
        config = make_config("bc", bench.data, output / "runs", bench.changes)
        job = {
            "config": str(write_config(output / "config.json", config)),
            "kind": kind,
            "option": option,
        }
        self._ranks = Ranks(name, count, stack)
        for rank in range(count):
            added = {"ROBOMIMIC_DDP_PRESET": option} if kind == OURS else {}
            if count > 1:
                added |= {"OMP_NUM_THREADS": "1", **self._ranks.launcher_variables(rank)}
            variables = {**environment(bench.hosts[kind == OURS]), "USE_TF": "0", **added}
            self._ranks.start([__spec__.name, "--work", json.dumps(job)], variables)

    def start(self) -> None:
        """Return when every rank is before its first step."""
        self._ranks.answers()

    def step(self, count: int) -> tuple[float, float]:
        """Return the seconds of a step over `count` steps, by the clock and by the processor: of
        the slowest rank.
        """
        clock, processor = zip(*self._ranks.ask(str(count)))
        return max(clock), max(processor)


class Bench:
    """Hosts, data and config in `folder`."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.folder = folder
        self.hosts = [copy_host(folder / "plain"), apply(copy_host(folder / "edited"))]
        self.data = make_hdf5(folder / "data.hdf5", lengths=[50] * _EPISODES)
        self.changes = {
            "experiment": {
                "epoch_every_n_steps": 10**6,
                "validate": False,
                "save": {"enabled": False},
            },
            "train": {"num_epochs": 1, "batch_size": batch, "hdf5_validation_filter_key": None},
            "algo": {"actor_layer_dims": [64, 64]},
        }

    def table(self, names: list[str], rounds: int, steps: int) -> turns.Table:
        """Measure the variants of `names` in turn."""
        with ExitStack() as stack:
            teams = {name: Team(self, name, stack) for name in names}
            for team in teams.values():  # they start side by side
                team.start()
            run = partial(turns.take_turns, names, measure=lambda name: teams[name].step(steps))
            run(rounds=_WARM_UP)
            results = run(rounds=rounds)
        rows = []
        for name in names:
            clock, processor = zip(*results[name])
            row = {
                "variant": name,
                "ranks": VARIANTS[name][2],
                "milliseconds": 1000 * statistics.median(clock),
                "processor_milliseconds": 1000 * statistics.median(processor),
                "over": {},
            }
            for base in (HOST, BY_HAND):
                if base in names and base != name:
                    base_clock, base_processor = zip(*results[base])
                    row["over"][base] = {
                        "clock": turns.ratio(clock, base_clock),
                        "processor": turns.ratio(processor, base_processor),
                    }
            rows.append(row)
        return rows, _lines(rows)


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    bases = list(dict.fromkeys(base for row in rows for base in row["over"]))
    compared = [f"times {base}{kind}" for base in bases for kind in ("", ", by processor time")]
    yield f"| a step | ranks | ms | processor ms | {' | '.join(compared)} |"
    yield f"|{'---|' * (4 + len(compared))}"
    for row in rows:
        cells = [row["variant"], str(row["ranks"])]
        cells += [f"{row[kind]:.2f}" for kind in ("milliseconds", "processor_milliseconds")]
        for base in bases:
            over = row["over"].get(base)
            kinds = ("clock", "processor")
            cells += ["", ""] if over is None else [turns.shown(over[kind]) for kind in kinds]
        yield f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = turns.parser(__doc__.partition("\n")[0], rounds=20, quick_rounds=5)
    parser.add_argument("--batch", type=whole_number(1), default=16, help="of a rank; default 16")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="of the variants")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.batch)
        rounds = args.rounds or (5 if args.quick else 20)
        steps = QUICK_STEPS if args.quick else STEPS
        names = args.only or list(VARIANTS)
        return turns.report(iter([bench.table(names, rounds, steps)]), args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
