"""Runs a tiny two-rank job again and again: python scripts/run_soak.py --runs 50

Every run is a real torchrun job of the host's own train script (odd runs: HDF5; even runs: RLDS
data, so that TensorFlow, torch and a process group share each process). Every run must exit with 0,
say nothing of an abort, and leave no process (so no port), semaphore or shared-memory segment.
Other programs that train on this machine at the same time may look like the latter two.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.demo.demonstrations import write_demo_dataset  # noqa: E402
from tests.configs import make_config, make_rlds_config, write_config  # noqa: E402
from tests.datasets import make_hdf5  # noqa: E402
from tests.hosts import FINISHED, Host, Result, apply, copy_host, torchrun  # noqa: E402

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps shared-memory segments and named semaphores."""
ONE_STEP = {
    "train": {"num_epochs": 1, "batch_size": 2},
    "experiment": {"epoch_every_n_steps": 1, "validation_epoch_every_n_steps": 1},
}


def traces() -> set[str]:
    """Shared-memory segments and semaphores of this machine that no process uses."""
    if not SHARED_MEMORY.is_dir():
        return set()
    used = _mapped()
    return {
        f"left in {SHARED_MEMORY}: {entry.name}"
        for entry in os.scandir(SHARED_MEMORY)
        if entry.inode() not in used
    }


def _mapped() -> set[int]:
    """Inodes of shared memory that processes have mapped: the name may be another one there."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue  # it has ended, or is someone else's
        found |= {int(line.split()[4]) for line in lines if f" {SHARED_MEMORY}/" in line}
    return found


def faults(result: Result, before: set[str]) -> list[str]:
    """What is wrong with a run's end."""
    found = []
    if result.returncode != 0 or FINISHED not in result.stdout:
        found.append(f"exit code {result.returncode}")
    found += [f"abort text {text!r}" for text in result.abort_texts()]
    found += [f"process left: {line}" for line in result.leftovers]
    left = traces() - before
    for _ in range(20):
        if not left:
            break
        time.sleep(0.25)
        left &= traces()
    return found + sorted(left)


class Soak:
    """The host and both datasets, made once in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host: Host = apply(copy_host(folder / "host"))
        self.hdf5 = make_hdf5(folder / "data.hdf5")
        self.rlds = folder / "rlds"
        write_demo_dataset(self.rlds, 12, seed=0, files=4, height=36, width=64)

    def run(self, number: int) -> Result:
        """The job number `number`, in a separate output folder."""
        output = self.folder / f"run{number}"
        if number % 2:
            config = make_config("diffusion_policy", self.hdf5, output, ONE_STEP)
        else:
            config = make_rlds_config(self.rlds, output, ONE_STEP)
        file = write_config(self.folder / f"run{number}.json", config)
        if number % 2:
            return torchrun(self.host, "robomimic.scripts.train", "--config", file, cold=True)
        entry = "robomimic.scripts.train_rlds"
        return torchrun(self.host, entry, f"load_from={file}", cold=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    bad, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="run-soak-") as folder:
        soak = Soak(Path(folder))
        for number in range(1, given.runs + 1):
            before = traces()
            result = soak.run(number)
            found = faults(result, before)
            bad += bool(found)
            print(f"run {number}: {'; '.join(found) or 'well'}", flush=True)
            if found:
                print(result, flush=True)
    seconds = time.monotonic() - started
    print(f"{given.runs} runs, {given.runs - bad} ended well, {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
