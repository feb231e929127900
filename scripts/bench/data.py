"""Loading RLDS data: ours, a host's, and the limit, measured in turn; one rank for each number of
ranks.

    python -m scripts.bench.data [--quick] [--sizes 180x320:128x128] [--worlds 1 8]

Each loader has a separate process, for its peak memory and processor time, forked from one that has
imported everything. Ours starts another, which is counted with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.prepare_data.command import image_size
from robomimic_ddp.config import machine
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.terminal import table, whole_number, width
from scripts.bench import turns
from scripts.bench.loading.data_set import (
    DEFAULT_FOLDER,
    OURS,
    PREPARED,
    DataJob,
    bytes_per_frame,
    write_if_missing,
)

ROUNDS, QUICK_ROUNDS = 15, 2
WORLDS, QUICK_WORLDS = (1, 2, 4, 8), (1, 8)
SIZES = ("128x128:128x128", "180x320:128x128")
HOSTS = ("host_shaped", "skipping")
LOADERS = (*OURS, *HOSTS, "jpeg_limit")
_NODE_CORES, _SAMPLES_PER_SECOND = 16, 1000
"""Of the column on GPUs: cores of a node, and what one GPU trains on."""
_WARM_UP_SECONDS = 0.05
_streams: list[Any] = []
"""In a loader's process: the loader."""
_STILL_SECONDS, _STILL_LOOKS, _LONGEST_WAIT = 0.005, 3, 10.0


def measure(
    job: DataJob, worlds: Sequence[int], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each loader and each of `worlds`: medians over `rounds` of at least
    `seconds`, after one to warm up. Writes the dataset if it is missing.

    first_batch_seconds: until the first batch; ours_over_its: ratios over rounds of processor time
    per frame, and of seconds per frame; over_hosts: processor time of ours over each host's loader.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripts.bench.loading.data_loaders"])
    started, first = {}, {}
    try:
        with ProcessPoolExecutor(1, context) as once:
            once.submit(write_if_missing, job).result()
            loaders = [name for name in LOADERS if name != PREPARED or job.stored != job.target]
            if PREPARED in loaders:
                once.submit(write_if_missing, job.read_by(PREPARED)).result()
        keys = [(world, name) for world in worlds for name in loaders]
        with ExitStack() as stack:
            for key in keys:
                started[key] = stack.enter_context(ProcessPoolExecutor(1, context))
                first[key] = started[key].submit(start, job, *key).result()
                started[key].submit(take_turn, _WARM_UP_SECONDS).result()
            results = turns.take_turns(
                keys, rounds, lambda key: started[key].submit(take_turn, seconds).result()
            )
    except BrokenProcessPool as error:
        raise ConfigError(
            "a process of the benchmark was ended from outside, perhaps since memory ran out. "
            "Measure fewer --worlds at a time."
        ) from error
    walls, cpus = (
        {key: [turn[clock] for turn in answers] for key, answers in results.items()}
        for clock in ("seconds_per_frame", "cpu_seconds_per_frame")
    )
    return [
        {
            "loader": name,
            "world": world,
            "frames_per_second": 1 / statistics.median(walls[world, name]),
            "cpu_seconds_per_1000_frames": 1000 * statistics.median(cpus[world, name]),
            "decoded_over_delivered": answers[-1]["decoded_over_delivered"],
            "peak_rss_mb": answers[-1]["peak_rss_mb"],
            "first_batch_seconds": first[world, name],
            "ours_over_its": {
                "processor": turns.ratio(cpus[world, "ours"], cpus[world, name]),
                "clock": turns.ratio(walls[world, "ours"], walls[world, name]),
            },
            "over_hosts": {
                host: turns.ratio(cpus[world, name], cpus[world, host])
                for host in (HOSTS if name in OURS else ())
            },
            "gpus_fed": _NODE_CORES
            / (statistics.median(cpus[world, name]) * job.frames_per_sample * _SAMPLES_PER_SECOND),
            "rounds": rounds,
            "stored": list(job.stored),
            "target": list(job.target),
        }
        for (world, name), answers in results.items()
    ]


def lines(job: DataJob, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table for the terminal, and what its rows have in common."""
    stored, target = ("x".join(map(str, size)) for size in (job.stored, job.target))
    same = " (changes nothing; ours leaves it out)" if stored == target else ""
    yield (
        f"{stored} ({bytes_per_frame(job) / 1e3:.1f} kB) to {target}{same}; "
        f"{job.episodes} episodes of {job.steps} steps, 2 cameras"
    )
    yield (
        f"batches of {job.batch} windows of {job.frame_stack} frames, shuffle buffer {job.buffer} "
        f"windows over all ranks, {job.threads} threads, {rows[0]['rounds']} rounds"
    )
    yield (
        f"GPUs: how many {_NODE_CORES} cores feed at {_SAMPLES_PER_SECOND} samples/s each; "
        f"{PREPARED}: prepare-data's, at {target}"
    )
    yield from table([_TITLES, *map(_cells, rows)], width())
    for row in rows:
        for host, ratio in row["over_hosts"].items():
            yield f"{row['loader']} over {host}, {row['world']} ranks, CPU: {turns.shown(ratio)}"


_TITLES = (
    *("loader", "ranks", "frames/s", "CPU s/1000", "decoded/delivered", "peak RSS", "first batch"),
    *("GPUs", "ours over it, CPU (95 %), by the clock (95 %)"),
)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    over = [turns.shown(row["ours_over_its"][way]) for way in ("processor", "clock")]
    return (
        row["loader"],
        f"{row['world']:5}",
        f"{row['frames_per_second']:8.0f}",
        f"{row['cpu_seconds_per_1000_frames']:10.3f}",
        f"{row['decoded_over_delivered']:17.2f}",
        f"{row['peak_rss_mb']:5.0f} MB",
        f"{row['first_batch_seconds']:9.2f} s",
        f"{row['gpus_fed']:4.1f}",
        "" if row["loader"] == "ours" else ", ".join(over),
    )


def start(job: DataJob, world: int, loader: str) -> float:
    """In a loader's process: make the loader; return seconds until the first batch."""
    from scripts.bench.loading.data_loaders import make_stream

    began = time.perf_counter()
    _streams.append(make_stream(job, loader, world))
    next(_streams[0].batches)
    return time.perf_counter() - began


def take_turn(seconds: float) -> dict[str, float]:
    """Read batches for at least `seconds`; return wall and processor time.

    Prefetched batches are read first, untimed. Processor time is counted between two moments
    without prefetching, so batches prefetched at the end make up for those at the start.
    """
    (stream,) = _streams
    _wait_until_still()
    cpu = cpu_seconds()
    for _ in range(stream.ahead):
        next(stream.batches)
    began, batches = time.perf_counter(), 0
    while not batches or time.perf_counter() - began < seconds:
        next(stream.batches)
        batches += 1
    wall = time.perf_counter() - began
    looking = _wait_until_still()
    cpu = cpu_seconds() - cpu - looking
    return {
        "seconds_per_frame": wall / batches / stream.frames_per_batch,
        "cpu_seconds_per_frame": cpu / (batches + stream.ahead) / stream.frames_per_batch,
        "decoded_over_delivered": stream.decoded_over_delivered(),
        "peak_rss_mb": _peak_memory() / 1e6,
    }


def _family() -> list[Path]:
    """Return the folders in /proc of this process and of those that it has started."""
    children = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return [Path("/proc/self"), *(Path("/proc", pid) for pids in children for pid in pids)]


def cpu_seconds() -> float:
    """Return the processor time of this process, and of the one that reads for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    fields = [(one / "stat").read_text().rpartition(")")[2].split() for one in _family()[1:]]
    ticks = sum(int(of_one[11]) + int(of_one[12]) for of_one in fields)
    return used.ru_utime + used.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def _peak_memory() -> int:
    """Return the sum of the peaks of these processes in bytes: what they share counts twice."""
    texts = [(one / "status").read_text() for one in _family()]
    return sum(1024 * int(re.search(r"VmHWM:\s+(\d+)", text)[1]) for text in texts)


def _wait_until_still() -> float:
    """Wait until the threads of these processes have stopped prefetching; return the processor time
    of the wait, in seconds.
    """
    began = time.thread_time()
    deadline, looks = time.monotonic() + _LONGEST_WAIT, 0
    while looks < _STILL_LOOKS and time.monotonic() < deadline:
        time.sleep(_STILL_SECONDS)
        looks = 0 if _has_running_threads() else looks + 1
    return time.thread_time() - began


def _has_running_threads() -> bool:
    """Return whether another thread of these processes is running or runnable (on Linux)."""
    for task in (task for one in _family() for task in (one / "task").glob("*")):
        try:
            state = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if state == "R" and int(task.name) != threading.get_native_id():
            return True
    return False


def size(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read one of --sizes: stored and delivered height and width."""
    stored, _, target = text.partition(":")
    return image_size(stored), image_size(target)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for each size, and return the exit code."""
    parser = turns.parser(__doc__.partition("\n\n")[0], ROUNDS, QUICK_ROUNDS)
    add, count = parser.add_argument, whole_number(1)
    add("--data", metavar="FOLDER", default=DEFAULT_FOLDER, help="where datasets are kept")
    what = f"stored:delivered height and width; default {' '.join(SIZES)}"
    add("--sizes", nargs="+", type=size, metavar="HxW:HxW", help=what)
    add("--worlds", nargs="+", type=count, metavar="N", help="numbers of ranks; default 1 2 4 8")
    args = parser.parse_args(argv)
    return turns.report(_tables(args), args.json)


def _tables(args: argparse.Namespace) -> Iterator[turns.Table]:
    small = {"steps": 20, "buffer": 500} if args.quick else {}
    sizes = args.sizes or list(map(size, SIZES[:1] if args.quick else SIZES))
    worlds = args.worlds or (QUICK_WORLDS if args.quick else WORLDS)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    for stored, target in sizes:
        job = DataJob(args.data, stored, target, threads=machine.usable_cores(), **small)
        rows = measure(job, worlds, rounds, 0.1 if args.quick else 0.5)
        yield rows, lines(job, rows)


if __name__ == "__main__":
    sys.exit(main())
