"""Loaders of RLDS data, measured in turn by processes that live side by side.

One rank of each number of ranks is measured at a time, with the same threads for every loader. A
turn of each makes a round, in an order that changes. Ratios are taken within rounds: what else the
machine does then meets all loaders alike.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from robomimic_ddp import env
from robomimic_ddp.bench.data_set import DataJob
from robomimic_ddp.errors import ConfigError

WORKER = "robomimic_ddp.bench.data_worker"
LOADERS = ("ours", "host_shaped", "skipping", "jpeg_limit")
FAST, OCTO = "ours_fast_decode", "octo"
"""Measured where they are asked for."""
WORLDS = (1, 2, 4, 8)
_WARM_UP_SECONDS = 0.05

Measured = dict[tuple[str, int], list[dict[str, float]]]
"""(loader, world) -> what each turn measured, and before them the start."""


class Server:
    """The process whose children are the loaders."""

    def __init__(self, job: DataJob) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            env=env.child_environment([]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ask(asdict(job))

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to one line. Raises ConfigError with the process's last words."""
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words follow
        for line in self._process.stdout:
            if line.startswith("bench "):
                answer = json.loads(line[len("bench ") :])
                if "error" not in answer:
                    return answer
                self.close()
                break
        self._process.kill()
        text = self._process.stderr.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a process of the benchmark ended: {text[-1]}")

    def close(self) -> None:
        """Ends the process and its children."""
        self._process.stdin.close()
        self._process.wait()


def measure(
    job: DataJob,
    worlds: Sequence[int],
    rounds: int,
    seconds: float,
    loaders: Sequence[str] = LOADERS,
    told: Callable[[str], None] = lambda line: None,
) -> Measured:
    """`rounds` turns of at least `seconds` of each loader at each of `worlds`, after one to warm
    up. `told` hears of the progress.
    """
    told(f"data set: {job.path} (written now unless it is there)")
    server = Server(job)
    try:
        found: Measured = {}
        for key in [(loader, world) for world in worlds for loader in loaders]:
            loader, world = key
            started = server.ask({"start": _name(key), "loader": loader, "world": world})
            server.ask({"turn": _name(key), "seconds": _WARM_UP_SECONDS})
            found[key] = [started]
        for number in range(rounds):
            told(f"round {number + 1} of {rounds}")
            keys = list(found)
            random.Random(number).shuffle(keys)
            for key in keys:
                found[key].append(server.ask({"turn": _name(key), "seconds": seconds}))
        return found
    finally:
        server.close()


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} {key[1]}"


def rows(job: DataJob, measured: Measured) -> list[dict[str, Any]]:
    """One row for each loader and world, by medians over rounds."""
    found = []
    for (loader, world), (started, *turns) in measured.items():
        speeds = [turn["frames"] / turn["wall"] for turn in turns]
        costs = [1000 * turn["cpu"] / turn["cpu_frames"] for turn in turns]
        found.append(
            {
                "loader": loader,
                "world": world,
                "frames_per_second": statistics.median(speeds),
                "cpu_seconds_per_1000_frames": statistics.median(costs),
                "decoded_over_delivered": turns[-1]["decoded_over_delivered"],
                "peak_rss_mb": turns[-1]["peak_rss_mb"],
                "first_batch_seconds": started["first_batch_seconds"],
                "frames_per_second_range": [min(speeds), max(speeds)],
                "cpu_seconds_per_1000_frames_range": [min(costs), max(costs)],
                "rounds": len(turns),
                "stored": list(job.stored),
                "target": list(job.target),
                "filter": job.filter,
                "batch": job.batch,
                "frame_stack": job.frame_stack,
                "shuffle_buffer_size": job.buffer,
                "threads": job.threads,
            }
        )
    return found


def describe(job: DataJob, bytes_a_frame: float) -> Iterator[str]:
    """What all rows of a job have in common."""
    stored, target = ("x".join(map(str, size)) for size in (job.stored, job.target))
    same = " (the identity, which hosts compute and ours leaves out)" if stored == target else ""
    yield (
        f"pictures stored {stored} ({bytes_a_frame / 1e3:.1f} kB), target {target}, filter "
        f"{job.filter}{same}; {job.episodes} episodes of {job.steps} steps, 2 cameras"
    )
    yield (
        f"batches of {job.batch} windows of {job.frame_stack} frame(s), shuffle buffer "
        f"{job.buffer} windows (ours: divided by the ranks), {job.threads} thread(s) a process, "
        "one rank measured at a time"
    )


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines for the terminal."""
    yield (
        f"{'loader':16} {'world':>5} {'frames/s':>9} {'CPU s/1000':>11} {'decoded/delivered':>18} "
        f"{'peak RSS':>9} {'first batch':>11}"
    )
    for row in found:
        yield (
            f"{row['loader']:16} {row['world']:5} {row['frames_per_second']:9.0f} "
            f"{row['cpu_seconds_per_1000_frames']:11.3f} {row['decoded_over_delivered']:18.2f} "
            f"{row['peak_rss_mb']:6.0f} MB {row['first_batch_seconds']:9.2f} s"
        )
