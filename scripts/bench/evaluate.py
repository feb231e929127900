"""What rollouts cost during training, and by `robomimic-ddp evaluate` with one and two workers.

    python -m scripts.bench.evaluate [--episodes 50] [--horizon 100] [--steps 300] [--data FILE]

Needs robosuite, as scripts/demo_robosuite.sh installs it. Trains its task Lift (BC-RNN-GMM) for one
epoch on two CPU ranks, once with rollouts and once with `ddp.rollouts=evaluate`, and plays the
checkpoint. Prints seconds (of `evaluate`: with the start of its workers), the share of training
that waits for rollouts, and the successes.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from robomimic_ddp.distributed import rendezvous
from robomimic_ddp.monitoring.records import evaluation, history
from scripts.arguments import CONFIGS
from tests.hosts import Host, apply, copy_host, environment

SEED, RANKS = 0, 2


def run(host: Host, *words: object) -> float:
    """Run a module with the host and return its seconds; what it prints is shown if it fails."""
    command = [sys.executable, "-m", *map(str, words)]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment(host), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.perf_counter() - started


def train(host: Host, folder: Path, config: dict[str, Any], rollouts: str) -> tuple[Path, float]:
    """Train, and return the run's folder and the seconds of the whole job."""
    config = copy.deepcopy(config)
    config["train"]["output_dir"] = str(folder / rollouts)
    config["ddp"] = {"rollouts": rollouts}
    file = folder / f"{rollouts}.json"
    file.write_text(json.dumps(config))
    launcher = [f"--nproc_per_node={RANKS}", *rendezvous.on_this_machine()]
    words = [*launcher, "-m", "robomimic.scripts.train", "--config", file]
    seconds = run(host, "torch.distributed.run", *words)
    return next((folder / rollouts / config["experiment"]["name"]).iterdir()), seconds


def played(log: dict[str, float], episodes: int) -> str:
    """Return the outcome of the episodes in words."""
    successes, horizon = log["Success_Rate"] * episodes, log["Horizon"]
    return f"{successes:.0f} of {episodes} succeeded, {horizon:.2f} steps each"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in (("episodes", 50), ("horizon", 100), ("steps", 300), ("attempts", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data", type=Path, help="of scripts.demo.lift_data; made if left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-evaluate-") as name:
        folder = Path(name)
        host = apply(copy_host(folder / "host", small=False))
        data = options.data or folder / "lift.hdf5"
        if options.data is None:
            run(host, "scripts.demo.lift_data", data, options.attempts, SEED)
        config = json.loads(CONFIGS["bc"].read_text())
        config["train"] |= {"num_epochs": 1, "cuda": False}
        config["train"]["data"][0]["path"] = str(data)
        config["experiment"]["epoch_every_n_steps"] = options.steps
        config["experiment"]["rollout"] |= {"n": options.episodes, "horizon": options.horizon}
        config["experiment"]["rollout"]["rate"] = 1
        with_rollouts, seconds = train(host, folder, config, "training")
        (log,) = [line["log"] for line in history.read(with_rollouts) if line["phase"] == "rollout"]
        print(f"training with rollouts: {seconds:.1f} s, {played(log, options.episodes)}")
        without, fewer = train(host, folder, config, "evaluate")
        waiting = "rollout" in {line["phase"] for line in history.read(without)}
        print(f"training without:       {fewer:.1f} s; it waits for rollouts: {waiting}")
        print(f"share of the first that was rollouts: {1 - fewer / seconds:.0%}")
        once: dict[int, float] = {}
        for workers in (1, 2):
            (without / evaluation.FILE_NAME).unlink(missing_ok=True)
            run(host, "robomimic_ddp", "evaluate", without, "--workers", workers)
            (result,) = evaluation.results(without)
            once[workers] = result["seconds_of_all"]
            outcome = played(result["log"], options.episodes)
            print(f"evaluate, {workers} worker(s): {once[workers]:.1f} s, {outcome}")
        print(f"two workers are {once[1] / once[2]:.2f} times as fast as one")


if __name__ == "__main__":
    main()
