"""The memory of the RLDS loader over many batches: flat, or it would end a month's training.

    python -m scripts.bench.memory

Exit code 1 where it grows after the first quarter, in which allocators and caches find their size.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile

import psutil

from robomimic_ddp.config import env, machine
from robomimic_ddp.data.rlds.loaders.make import make_loader
from scripts.bench.loading.data_set import DataJob, open_dataset, write_if_missing

MARKS = 20
MOST_GROWTH_MB = 20.0


def main() -> int:
    """Reads batches of one of two ranks, from pictures so small that passes go by quickly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=20_000)
    batches = parser.parse_args().batches
    env.defer_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        job = DataJob(folder, (16, 16), (16, 16), batch=4, frame_stack=1)
        write_if_missing(job)
        loader = make_loader(open_dataset(job), job.batch, 0, 2, 1, cores=machine.usable_cores())
        stream, marks = itertools.chain.from_iterable(itertools.repeat(loader)), []
        for number in range(1, MARKS + 1):
            for _ in itertools.islice(stream, max(1, batches // MARKS)):
                pass
            marks.append(psutil.Process().memory_info().rss / 1e6)
            print(f"after {batches * number // MARKS:8} batches: {marks[-1]:8.1f} MB", flush=True)
        passes = loader.pass_number
    settled = marks[MARKS // 4 :]
    growth = max(settled) - settled[0]
    verdict = "flat" if growth <= MOST_GROWTH_MB else "NOT FLAT"
    print(f"{verdict}: {growth:.1f} MB more than after the first quarter, over {passes} passes")
    return growth > MOST_GROWTH_MB


if __name__ == "__main__":
    sys.exit(main())
