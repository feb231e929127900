"""Kills training jobs again and again, resumes them, and compares their ends with an uninterrupted
run: python scripts/kill_soak.py --kills 100

Each kill is SIGKILL at a random moment of a real torchrun job on this machine's CPU: of one rank,
of all ranks, of torchrun itself, or of the main rank in the middle of writing its state. Half of
the jobs may be restarted by torchrun (--max-restarts=1); others are resumed by hand. Prints what
was done and exits with 0 when every finished run has the bits of the uninterrupted one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from robomimic_ddp.checkpoint import STATE  # noqa: E402
from robomimic_ddp.checkpoint.state_file import read_file  # noqa: E402
from robomimic_ddp.distributed import rendezvous  # noqa: E402
from scripts.demo.demonstrations import write_demo_dataset  # noqa: E402
from tests.configs import NAME, make_config, make_rlds_config, write_config  # noqa: E402
from tests.datasets import make_hdf5  # noqa: E402
from tests.hosts import apply, copy_host, environment  # noqa: E402
from tests.runs import state_differences  # noqa: E402

KINDS = ("rank", "all", "agent", "save")
EPOCHS = 6
PATIENCE_SECONDS = 300.0


class Soak:
    """One uninterrupted run, then killed ones until there were enough kills."""

    def __init__(self, folder: Path, ranks: int, seed: int, rlds: bool) -> None:
        self.folder, self.ranks, self.draw = folder, ranks, random.Random(seed)
        self.host = apply(copy_host(folder / "host"))
        self.rlds = rlds
        if rlds:
            self.data = folder / "rlds"
            write_demo_dataset(self.data, 20, seed=0, files=6, height=36, width=64)
        else:
            self.data = make_hdf5(folder / "data.hdf5")
        self.counts: Counter = Counter()
        self.run_seconds = 0.0

    def start(self, output: Path, plan: str = "none", restarts: int = 0) -> subprocess.Popen:
        """A torchrun job that resumes if `output` has a state, else starts."""
        output.mkdir(exist_ok=True)
        changes = {"train": {"num_epochs": EPOCHS}}
        if self.rlds:
            changes["experiment"] = {"epoch_every_n_steps": 3, "validate": False}
            config = make_rlds_config(self.data, output / "runs", changes)
        else:
            config = make_config("diffusion_policy", self.data, output / "runs", changes)
        file = write_config(output / "config.json", config)
        launcher = ["-m", "torch.distributed.run", *rendezvous.on_this_machine()]
        launcher += [f"--nproc_per_node={self.ranks}", f"--max-restarts={restarts}"]
        arguments = ["-m", "tests.e2e.entries.killed_train", plan, str(output / "happened")]
        arguments += ["--config", str(file)]
        if self.states(output):
            arguments.append("--resume")
            self.counts["resumed by hand"] += 1
        with open(output / "log.txt", "a") as log:
            return subprocess.Popen(
                [sys.executable, *launcher, *arguments],
                env={**environment(self.host), "ROBOMIMIC_TEST_SOAK": str(output)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def states(output: Path) -> list[Path]:
        return sorted((output / "runs" / NAME).glob(f"*/{STATE}"))

    def end(self, job: subprocess.Popen, output: Path) -> int:
        """Waits for the job and for all of its workers; the job's exit code."""
        job.wait(PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := workers_of(output):
            if time.monotonic() > deadline:
                raise SystemExit(f"processes outlived their job: {left}")
            time.sleep(0.2)
        return job.returncode

    def whole(self) -> dict:
        """The last state of a run that nothing interrupts."""
        output, started = self.folder / "whole", time.monotonic()
        if self.end(self.start(output), output):
            raise SystemExit(f"the uninterrupted run failed, see {output / 'log.txt'}")
        self.run_seconds = time.monotonic() - started
        return read_file(self.states(output)[-1])

    def killed(self, output: Path, kills: int) -> int:
        """One run to its end, killed at most `kills` times on the way; how often it was."""
        done = 0
        while True:
            kind = self.draw.choice(KINDS) if done < kills else "none"
            restarts = self.draw.choice((0, 1))
            plan = f"0@save:{self.draw.randint(1, 3)}" if kind == "save" else "none"
            for path in (output / "happened").glob("*"):
                path.unlink()
            job = self.start(output, plan, restarts)
            hit = kind in ("rank", "all", "agent") and self.kill(job, output, kind)
            code = self.end(job, output)
            hit = hit or bool(list((output / "happened").glob("*save*")))
            if hit:
                done += 1
                self.counts[f"kills: {kind}"] += 1
                self.counts["restarted by torchrun"] += restarts and kind != "agent"
            if code == 0:
                return done
            if not hit:
                raise SystemExit(f"a run failed without a kill, see {output / 'log.txt'}")

    def kill(self, job: subprocess.Popen, output: Path, kind: str) -> bool:
        """Waits a random time and kills; False when the job was over before."""
        moment = time.monotonic() + self.draw.uniform(0.2, 1.0) * self.run_seconds
        while time.monotonic() < moment:
            if job.poll() is not None:
                return False
            time.sleep(0.01)
        found = [job.pid] if kind == "agent" else workers_of(output)
        if kind == "rank" and found:
            found = [self.draw.choice(found)]
        hit = False
        for pid in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(signal.SIGKILL)
                hit = True
        return hit


def workers_of(output: Path) -> list[int]:
    """Process ids of the ranks that belong to the run in `output`."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            if variables.get("ROBOMIMIC_TEST_SOAK") == str(output) and "RANK" in variables:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills-per-run", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rlds", action="store_true", help="train on RLDS data, not on HDF5")
    given = parser.parse_args()
    started, kills, equal, runs = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="kill-soak-") as folder:
        soak = Soak(Path(folder), given.ranks, given.seed, given.rlds)
        expected = soak.whole()
        while kills < given.kills:
            output = Path(folder) / f"run{runs}"
            kills += soak.killed(output, min(given.kills_per_run, given.kills - kills))
            found = state_differences(read_file(soak.states(output)[-1]), expected)
            runs, equal = runs + 1, equal + (not found)
            print(f"run {runs}: {'equal to the bit' if not found else found[:5]}", flush=True)
    for name in sorted(soak.counts):
        print(f"{name}: {soak.counts[name]}")
    seconds = time.monotonic() - started
    print(f"{kills} kills, {runs} runs, {equal} equal to the bit, {seconds:.0f} s")
    return 0 if equal == runs else 1


if __name__ == "__main__":
    sys.exit(main())
