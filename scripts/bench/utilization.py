"""The share of the time in which accelerators compute and do not wait for data, in the manner of
MLPerf Storage: steps are emulated, data is read as in training.

    python -m scripts.bench.utilization [--quick] [--worlds 1 2 4 8]

Each rank is a process that asks our loader for a batch, then computes for the time of a step, by
sleeping. Utilization is compute / (compute + waiting) over all ranks, the first batches left out;
the files leave the page cache before each turn. What other cores reach is derived from the
processor time of a sample: other load on this machine changes it less than it changes waiting.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from robomimic_ddp.config import machine
from robomimic_ddp.data.rlds.pipeline.settings import PREFETCHED_BATCHES
from robomimic_ddp.terminal import table, whole_number, width
from scripts.bench import turns
from scripts.bench.data import cpu_seconds
from scripts.bench.loading.data_set import (
    DEFAULT_FOLDER,
    OURS,
    PREPARED,
    DataJob,
    open_dataset,
    write_if_missing,
)

WORLDS, QUICK_WORLDS = (1, 2, 4, 8), (1, 8)
STEP_SECONDS = (0.025, 0.1, 0.3)
BATCH, ROUNDS, QUICK_ROUNDS = 64, 3, 1
NODE_CORES, NODE_GPUS = 16, 8
"""Of the node that is derived; a core for each GPU is left to the thread that trains."""
RATES = (500, 1000)
"""Samples/s of a GPU, for which cores are derived."""
LONE_RATE, LONE_STEP = 1000, 0.02
"""Of the GPU that has this machine's cores alone, as NODE_GPUS have NODE_CORES."""
_STREAM: list[Iterator[Any]] = []
"""In a rank's process: the batches."""
Compute = Callable[[float], None]


def work_in_python(seconds: float) -> None:
    """Compute with Python's lock all the time, as a host that builds tensors from lists."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))


COMPUTE: dict[str, Compute] = {"asleep": time.sleep, "in Python": work_in_python}


def begin(job: DataJob, rank: int, world: int) -> None:
    """In a rank's process: make its loader, and wait for a first batch."""
    from robomimic_ddp.data.rlds.loaders.make import make_loader
    from robomimic_ddp.data.rlds.loaders.prefetch import Prefetcher

    cores = max(1, machine.usable_cores() // world)
    loader = make_loader(open_dataset(job), job.batch, rank, world, 1, cores=cores)
    loader._ahead = Prefetcher(loader._as_torch)  # as for a GPU, to which nothing is copied here

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    _STREAM.append(batches())
    next(_STREAM[0])


def train(moment: float, step: float, steps: int, compute: str) -> dict[str, float]:
    """In a rank's process, from a moment of the monotonic clock: emulate steps."""
    stream, work = _STREAM[0], COMPUTE[compute]
    time.sleep(max(0.0, moment - time.monotonic()))
    for _ in range(2 + PREFETCHED_BATCHES):  # those that were made while nothing trained
        next(stream)
    cpu, waits, computed = cpu_seconds(), [], 0.0
    for _ in range(steps):
        began = time.perf_counter()
        next(stream)
        arrived = time.perf_counter()
        work(step)
        waits.append(arrived - began)
        computed += time.perf_counter() - arrived
    return {
        "waited": sum(waits),
        "median_wait": statistics.median(waits),
        "computed": computed,
        "cpu": cpu_seconds() - cpu,
    }


def drop_from_page_cache(job: DataJob) -> None:
    """Have the system read the files of the dataset from the disk again."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in job.path.glob("*tfrecord*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(
    job: DataJob,
    world: int,
    steps: Sequence[float],
    rounds: int,
    seconds: float,
    computes: Sequence[str] = ("asleep",),
) -> list[dict[str, Any]]:
    """Return a row for each of `steps` (seconds) and `computes`: medians over `rounds` of turns of
    about `seconds`, at least six steps.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["robomimic_ddp.data.rlds.loaders.make"])
    with ExitStack() as stack:
        ranks = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(world)]
        ranks[0].submit(write_if_missing, job).result()
        for started in [
            process.submit(begin, job, rank, world) for rank, process in enumerate(ranks)
        ]:
            started.result()

        def turn(key: tuple[float, str]) -> list[dict[str, float]]:
            step, compute = key
            drop_from_page_cache(job)
            moment, count = time.monotonic() + 0.2, max(6, round(seconds / step))
            answers = [process.submit(train, moment, step, count, compute) for process in ranks]
            return [{**answer.result(), "samples": count * job.batch} for answer in answers]

        keys = [(step, compute) for compute in computes for step in steps]
        results = turns.take_turns(keys, rounds, turn)
    return [
        row_of(job, world, *key, [sums(answers) for answers in all_answers])
        for key, all_answers in results.items()
    ]


def sums(answers: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the sums over the ranks of a turn."""
    return {name: sum(answer[name] for answer in answers) for name in answers[0]}


def row_of(
    job: DataJob, world: int, step: float, compute: str, turns_of_it: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Return what the terminal and --json show of the turns of one kind."""
    used = [t["computed"] / (t["computed"] + t["waited"]) for t in turns_of_it]
    cpu = statistics.median(t["cpu"] / t["samples"] for t in turns_of_it)
    rates = [world * t["samples"] / (t["computed"] + t["waited"]) for t in turns_of_it]
    share = (NODE_CORES - NODE_GPUS) / NODE_GPUS
    return {
        "data": "prepared" if job.prepared else "source",
        "compute": compute,
        "world": world,
        "batch": job.batch,
        "step_seconds": step,
        "utilization": statistics.median(used),
        "samples_per_second": statistics.median(rates),
        "asked_samples_per_second": world * job.batch / step,
        # Of work in Python it is the work's.
        "cpu_seconds_per_sample": cpu if compute == "asleep" else None,
        "node_utilization": min(1.0, share * step / job.batch / cpu) if cpu else None,
        "cores_for_node": {rate: NODE_GPUS * rate * cpu for rate in RATES},
        "median_wait_seconds": statistics.median(t["median_wait"] for t in turns_of_it) / world,
        "load": os.getloadavg()[0],
        "rounds": len(turns_of_it),
    }


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the rows of one dataset, and what it says of a node."""
    cores, load = machine.usable_cores(), max(row["load"] for row in rows)
    yield f"{rows[0]['data']}, batches of {rows[0]['batch']}, {cores} cores, load up to {load:.1f}"
    node = f"of {NODE_GPUS} GPUs on {NODE_CORES} cores"
    title = ("ranks", "step", "samples/s", "asked for", "utilization", "CPU ms", node)
    yield from table([title, *map(_cells, rows)], width())
    cpu = statistics.median(row["cpu_seconds_per_sample"] for row in rows)
    for rate in RATES:
        need = NODE_GPUS * rate * cpu
        yield f"{NODE_GPUS} GPUs at {rate} samples/s each need {need:.1f} cores to load"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['world']:5}",
        f"{1000 * row['step_seconds']:.0f} ms",
        f"{row['samples_per_second']:9.0f}",
        f"{row['asked_samples_per_second']:9.0f}",
        f"{row['utilization']:11.1%}",
        f"{1000 * row['cpu_seconds_per_sample']:6.2f}",
        f"{row['node_utilization']:.1%}",
    )


def lone_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the share of waiting of a rank that has its share of a node's cores."""
    for row in rows:
        yield (
            f"one rank, {row['data']}, {LONE_RATE} samples/s in steps of "
            f"{1000 * row['step_seconds']:.0f} ms {row['compute']}: waits "
            f"{1 - row['utilization']:.2%} of the time, "
            f"{row['median_wait_seconds'] / row['step_seconds']:.2%} of a median step "
            f"(load {row['load']:.1f})"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for each dataset, and return the exit code."""
    parser = turns.parser(__doc__.partition("\n\n")[0], ROUNDS, QUICK_ROUNDS)
    add = parser.add_argument
    add("--data", metavar="FOLDER", default=DEFAULT_FOLDER, help="where datasets are kept")
    add("--worlds", nargs="+", type=whole_number(1), metavar="N", help="numbers of ranks")
    args = parser.parse_args(argv)
    return turns.report(_tables(args), args.json)


def _tables(args: argparse.Namespace) -> Iterator[turns.Table]:
    worlds = args.worlds or (QUICK_WORLDS if args.quick else WORLDS)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    seconds = 1.0 if args.quick else 3.0
    job = DataJob(args.data, (180, 320), (128, 128), batch=BATCH)
    for loader in reversed(OURS):
        read = job.read_by(loader)
        rows = [row for n in worlds for row in measure(read, n, STEP_SECONDS, rounds, seconds)]
        yield rows, lines(rows)
    lone = replace(job.read_by(PREPARED), batch=round(LONE_RATE * LONE_STEP))
    rows = measure(lone, 1, [LONE_STEP], 3 * rounds, seconds, [*COMPUTE])
    yield rows, lone_lines(rows)


if __name__ == "__main__":
    sys.exit(main())
