"""Seconds of training until a policy succeeds in 90 % of episodes, on one rank and on two.

    python -m scripts.bench.time_to_quality [--task demo|lift] [--rounds 3] [--epochs 40] [--quick]

Two ranks train with `ddp.schedule=samples` (twice the batch, half the steps) and with
`ddp.batch=global` (the same batch and steps). A checkpoint is kept every two epochs, and the
processes of `robomimic-ddp evaluate` play them after training, oldest first. The time of the first
one that reaches the target runs from the start of the launcher until its file is complete: it
includes the start of the ranks and no evaluation. On the CPU each rank has one core. Every run
trains to its end, with the same schedule of the learning rate. A training that is complete under
--root is kept. Task lift needs robosuite, as scripts/demo_robosuite.sh installs it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp import cli
from robomimic_ddp.errors import EXIT_DONE
from robomimic_ddp.monitoring.records import evaluation, history
from robomimic_ddp.terminal import say, whole_number
from scripts.arguments import CHECKOUT, CONFIGS
from scripts.bench import turns
from scripts.demo.demonstrations import count_written
from scripts.demo.job import Job

CASES = {
    "1 rank": (1, {}),
    "2 ranks, ddp.schedule=samples": (2, {"schedule": "samples"}),
    "2 ranks, ddp.batch=global": (2, {"batch": "global"}),
}
"""Ranks and options."""
FIRST_EPISODES = 10
"""Where too many of these fail, the others are not played."""
EVERY = 2
"""Epochs between checkpoints."""


class Bench:
    """Trains and plays one task below `root`; a training that is complete is kept."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self.job, self.task = Job(root), options.task
        self.words = [options.episodes, options.target]
        if self.task == "demo":
            config = CHECKOUT / "configs" / "demo.json"
            data = self.job.root / f"data_{options.demonstrations}"
            is_written = count_written(data) == options.demonstrations
            write, place = "scripts.demo.demonstrations", {"data_path": str(data)}
            place["data_cache_dir"] = str(self.job.root / "cache")
        else:
            config = CONFIGS["bc"]
            data = self.job.root / f"lift_{options.demonstrations}.hdf5"
            is_written = data.exists()
            write, place = "scripts.demo.lift_data", {"data": [{"path": str(data), "lang": None}]}
        self.config = json.loads(config.read_text())
        self.config["train"] |= {**place, "num_epochs": options.epochs}
        experiment = self.config["experiment"]
        experiment["save"] |= {"enabled": True, "every_n_epochs": EVERY}
        experiment |= {"validate": False, "epoch_every_n_steps": options.steps}
        experiment["rollout"]["enabled"] = False
        self.job.step("host", self.job.patch_host)
        if self.task == "demo":
            self.job.add_simulator()
        if not is_written:
            shutil.rmtree(data, ignore_errors=True)
            words = (write, data, options.demonstrations, 0)
            self.job.step("data", lambda: self.job.python(*words))

    def measure(self, case: str, seed: int) -> dict[str, Any]:
        """Train once and return when the target was reached."""
        self.job.ranks, options = CASES[case]
        name = re.sub(r"\W+", "_", f"{case} {seed}")
        folder, file = self.job.root / name, self.job.root / f"{name}.json"
        train = {**self.config["train"], "seed": seed, "output_dir": str(folder)}
        file.write_text(json.dumps({**self.config, "train": train, "ddp": options}, indent=2))
        records = [json.loads(record.read_text()) for record in folder.glob("*/*/ddp.json")]
        if not any("outcome" in record for record in records):
            shutil.rmtree(folder, ignore_errors=True)  # a resumed training would have no clock
        if self.task == "demo":
            words = ("robomimic.scripts.train_rlds", file, [f"load_from={file}"], "")
        else:
            words = ("robomimic.scripts.train", file, ["--config", str(file)], "")
        with cores(self.job.ranks):
            run = self.job.train(name, *words)
        play = (__spec__.name, "--play", run, *self.words)
        self.job.step(f"{name}_episodes", lambda: self.job.python(*play))
        started = (folder / "started.json").stat().st_mtime
        return {"case": case, "seed": seed, **reached(run, started, *self.words)}


@contextmanager
def cores(count: int) -> Iterator[None]:
    """For the block, what is started has `count` cores: on the CPU, a rank stands for a GPU."""
    before = os.sched_getaffinity(0)
    if not torch.cuda.is_available():
        os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def checkpoints_of(run: Path) -> list[tuple[int, Path]]:
    """Return the epochs and files of a run's checkpoints, oldest first."""
    files = (run / "models").glob("model_epoch_*.pth")
    return sorted((int(re.search(r"epoch_(\d+)", file.name)[1]), file) for file in files)


def play(run: Path, episodes: int, target: float) -> int:
    """Play the checkpoints of a run until one succeeds in the share `target` of its episodes.
    Return the exit code of `robomimic-ddp evaluate`.
    """
    may_fail = episodes - target * episodes
    for epoch, file in checkpoints_of(run):
        for count in sorted({min(FIRST_EPISODES, episodes), episodes}):
            words = ["--checkpoints", str(file), "--episodes", str(count)]
            code = cli.main(["evaluate", str(run), *words])
            if code:
                return code
            rates = [r["log"] for r in evaluation.results(run) if r["epoch"] == epoch]
            if count * (1.0 - rates[-1][evaluation.SUCCESS]) > may_fail + 1e-6:
                break
        else:
            break
    return EXIT_DONE


def reached(run: Path, started: float, episodes: int, target: float) -> dict[str, Any]:
    """Return the epoch, steps and seconds of the first checkpoint that reached the target, and the
    success of each that was played; `epoch` is None where none did.
    """
    results = evaluation.results(run)
    rates = {result["epoch"]: result["log"][evaluation.SUCCESS] for result in results}
    best = [
        result["epoch"]
        for result in results
        if result["episodes"] == episodes and rates[result["epoch"]] >= target - 1e-9
    ]
    values: dict[str, Any] = {"success": rates, "epoch": min(best, default=None)}
    if best:
        file = dict(checkpoints_of(run))[min(best)]
        lines = [line for line in history.read(run) if line["phase"] == "train"]
        lines = [line for line in lines if line["epoch"] <= min(best)]
        values |= {
            "seconds": os.stat(file).st_mtime - started,
            "training_seconds": sum(line["seconds"] for line in lines),
            "steps": sum(line["steps"] for line in lines),
        }
    return values


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table; ratios are of the same seed."""
    yield "| | reached | seconds | in steps only | steps | times as fast as 1 rank |"
    yield "|---|---|---|---|---|---|"
    (first, *_) = CASES
    alone = {row["seed"]: row for row in rows if row["case"] == first and row["epoch"]}
    for case in CASES:
        runs = [row for row in rows if row["case"] == case]
        good = [row for row in runs if row["epoch"]]
        speeds = [
            alone[row["seed"]]["seconds"] / row["seconds"] for row in good if row["seed"] in alone
        ]
        cells = [_spread([row[key] for row in good]) for key in ("seconds", "training_seconds")]
        cells += [_spread([row["steps"] for row in good])]
        cells += ["" if case == first else _spread(speeds, 2)]
        yield f"| {case} | {len(good)} of {len(runs)} | {' | '.join(cells)} |"


def _spread(values: list[float], digits: int = 0) -> str:
    """Return the median, least and most."""
    if not values:
        return "-"
    numbers = (statistics.median(values), min(values), max(values))
    middle, least, most = (f"{number:.{digits}f}" for number in numbers)
    return f"{middle} ({least} to {most})"


def main() -> int:
    """Print the table."""
    parser = turns.parser(__doc__.partition("\n")[0], rounds=3, quick_rounds=1)
    add, whole = parser.add_argument, whole_number(1)
    add("--root", type=Path, default=Path("runs/time_to_quality"), help="where all of it goes")
    add("--task", choices=("demo", "lift"), default="demo")
    add("--epochs", type=whole_number(EVERY), default=40, help="of each training: 40")
    add("--steps", type=whole, default=100, help="of an epoch on one rank: 100")
    add("--episodes", type=whole, default=50, help="of each checkpoint: 50")
    add("--demonstrations", type=whole_number(2), default=300, help="default 300")
    add("--target", type=float, default=0.9, help="share that succeeds: 0.9")
    options = parser.parse_args()
    if options.quick:
        options.epochs, options.steps, options.target = EVERY, 4, 0.0
        options.demonstrations, options.episodes = 20, 2
    if options.task == "lift" and importlib.util.find_spec("robosuite") is None:
        say("skipped: robosuite is not installed (scripts/demo_robosuite.sh installs it)")
        return EXIT_DONE
    if torch.cuda.device_count() < 2:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rounds = options.rounds or (1 if options.quick else 3)
    return turns.report(tables(options, rounds), options.json)


def tables(options: argparse.Namespace, rounds: int) -> Iterator[turns.Table]:
    """Measure each case once for each seed; yield the table so far after each seed."""
    bench, rows = Bench(options.root / options.task, options), []
    for seed in range(1, rounds + 1):
        new = [bench.measure(case, seed) for case in CASES]
        rows += new
        yield new, table(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        sys.exit(play(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    else:
        sys.exit(main())
