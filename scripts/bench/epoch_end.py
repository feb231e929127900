"""How long training pauses between two epochs: the unedited host, and ours on one rank and two.

    python -m scripts.bench.epoch_end [--epochs 6] [--steps 5] [--rounds 2] [--quick]
                                      [--device cuda]

Trains the host's default low-dim diffusion policy (65.5 M parameters) on this machine's CPU, or on
one GPU, where ours has one rank. A pause lasts from the end of an epoch's last step to the
beginning of the next epoch's first: the host writes last.pth and last_bak.pth in it, and ours a
state too. The first pause of ours has a state, later ones where `ddp.save_seconds` says so. Also
prints the median step, which files that are written meanwhile may slow down, and what comes after
the last step: ours waits for its files there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robomimic_ddp.distributed import rendezvous
from robomimic_ddp.terminal import whole_number
from scripts.bench import turns
from tests.configs import make_config, write_config
from tests.datasets import make_hdf5
from tests.e2e.entries.watched_train import around
from tests.hosts import apply, copy_host, environment

CASES = {"host": 0, "ours, 1 rank": 1, "ours, 2 ranks": 2}
"""Ranks of ours; 0 for the unedited host."""
ON_CUDA = tuple(case for case, ranks in CASES.items() if ranks < 2)


class Clock:
    """Notes when each training step of this process begins and ends."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def construct(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the host's model, whose steps are noted."""
        model = factory(*args, **kwargs)
        around(model, "train_on_batch", self.step)
        return model

    def step(self, train_on_batch: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = train_on_batch(*args, **kwargs)
        self.times.append((begin, time.perf_counter()))
        return result


def work(config: str, steps: int, report: str) -> None:
    """One rank's training; the main rank writes its seconds."""
    import robomimic.scripts.train as host_train

    from robomimic_ddp.config import launch_env
    from tests.e2e.entries.host_entry import train

    clock = Clock()
    around(host_train, "algo_factory", clock.construct)
    train(config)
    ended, times = time.perf_counter(), clock.times
    firsts = range(steps, len(times), steps)
    found = {
        "pauses": [times[first][0] - times[first - 1][1] for first in firsts],
        "step": statistics.median(end - begin for begin, end in times),
        "end": ended - times[-1][1],
    }
    if launch_env.read_launch_env().rank == 0:
        Path(report).write_text(json.dumps(found))


class Bench:
    """Hosts, data and config in `folder`."""

    def __init__(self, folder: Path, epochs: int, steps: int, device: str) -> None:
        self.folder, self.steps, self.count = folder, steps, 0
        self.cases, self.visible = tuple(CASES), {"CUDA_VISIBLE_DEVICES": ""}
        if device == "cuda":
            chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
            self.cases, self.visible = ON_CUDA, {"CUDA_VISIBLE_DEVICES": chosen}
        self.hosts = [
            copy_host(folder / "plain", small=False),
            apply(copy_host(folder / "edited", small=False)),
        ]
        self.data = make_hdf5(folder / "data.hdf5")
        self.changes = {
            "experiment": {
                "epoch_every_n_steps": steps,
                "validate": False,
                "save": {"every_n_epochs": None},
            },
            "train": {
                "cuda": device == "cuda",
                "num_epochs": epochs,
                "batch_size": 16,
                "hdf5_validation_filter_key": None,
            },
        }

    def measure(self, case: str) -> dict[str, Any]:
        """Return the seconds of one run."""
        ranks, self.count = CASES[case], self.count + 1
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            output, report = Path(name), Path(name, "report.json")
            config = make_config("diffusion_policy", self.data, output / "runs", self.changes)
            file = write_config(output / "config.json", config)
            launcher = []
            if ranks > 1:
                where = [*rendezvous.on_this_machine(), f"--nproc_per_node={ranks}"]
                launcher = ["-m", "torch.distributed.run", *where]
            words = ["-m", __spec__.name, "--work", file, self.steps, report]
            subprocess.run(
                [sys.executable, *launcher, *map(str, words)],
                env=environment(self.hosts[ranks > 0], self.visible),
                stdout=subprocess.DEVNULL,
                check=True,
            )
            return json.loads(report.read_text())

    def table(self, rounds: int) -> turns.Table:
        """Measure all cases in turn."""
        found = turns.take_turns(self.cases, rounds, self.measure)
        pauses = {case: [statistics.median(one["pauses"]) for one in found[case]] for case in found}
        rows = [
            {
                "case": case,
                "first": statistics.median(one["pauses"][0] for one in runs),
                "pause": statistics.median(sum((one["pauses"] for one in runs), [])),
                "longest": max(max(one["pauses"]) for one in runs),
                "over_host": turns.ratio(pauses[case], pauses["host"]),
                "step": statistics.median(one["step"] for one in runs),
                "end": statistics.median(one["end"] for one in runs),
            }
            for case, runs in found.items()
        ]
        return rows, _lines(rows)


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = ("first, s", "median, s", "over the host's", "longest, s", "a step, s", "the end, s")
    yield f"| between two epochs | {' | '.join(columns)} |"
    yield f"|{'---|' * (len(columns) + 1)}"
    for row in rows:
        yield (
            f"| {row['case']} | {row['first']:.2f} | {row['pause']:.2f} | "
            f"{turns.shown(row['over_host'])} | {row['longest']:.2f} | {row['step']:.2f} | "
            f"{row['end']:.2f} |"
        )


def main() -> int:
    """Print the table."""
    parser = turns.parser(__doc__.partition("\n")[0], rounds=2, quick_rounds=1)
    parser.add_argument(
        "--epochs", type=whole_number(2), help="default 6, with --quick 3: two pauses"
    )
    parser.add_argument("--steps", type=whole_number(1), default=5, help="of an epoch: 5")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        epochs = args.epochs or (3 if args.quick else 6)
        bench = Bench(Path(folder), epochs, args.steps, args.device)
        tables = iter([bench.table(args.rounds or (1 if args.quick else 2))])
        return turns.report(tables, args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
