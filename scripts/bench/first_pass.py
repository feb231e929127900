"""How fast the first pass over a dataset reads it for its index, next to `cat` of the same files.

    python -m scripts.bench.first_pass

Both begin with the files out of the page cache, in turn. Without --data, reads the dataset that
`scripts.bench.data` writes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robomimic_ddp.config import env, machine
from robomimic_ddp.data.rlds.index.build import make_index
from scripts.bench.loading.data_set import DEFAULT_FOLDER, DataJob, open_dataset, write_if_missing


def forget(files: tuple[Path, ...]) -> None:
    """Takes `files` out of the page cache."""
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's processors."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Prints MB/s of both, their ratio, and the processor time of a GB."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default=DEFAULT_FOLDER, help="where the dataset is kept")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    env.defer_tensorflow()
    job = DataJob(args.data, (180, 320), (128, 128))
    write_if_missing(job)
    dataset = open_dataset(job)
    source, threads = dataset.source, min(8, machine.usable_cores())
    make_index(source, dataset.fields, [0], threads)  # TensorFlow starts
    found = []
    for _ in range(args.rounds):
        forget(source.files)
        cat, _ = timed(lambda: subprocess.run(["cat", *source.files], stdout=subprocess.DEVNULL))
        forget(source.files)
        ours, processor = timed(lambda: make_index(source, dataset.fields, None, threads))
        found.append((cat, ours, processor))
    size = sum(source.sizes) / 1e6
    cats, indices, processors = zip(*found)
    print(f"{source.folder}: {size:.0f} MB, {threads} threads, {args.rounds} rounds, medians")
    for name, seconds in (("cat", cats), ("first pass", indices)):
        print(f"{name:10} {size / statistics.median(seconds):7.0f} MB/s")
    ratios = sorted(cat / ours for cat, ours, _ in found)
    middle = statistics.median(ratios)
    print(f"first pass over cat: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"processor time: {1000 * statistics.median(processors) / size:.2f} s for a GB")


if __name__ == "__main__":
    main()
