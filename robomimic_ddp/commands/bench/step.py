"""`bench step`: training steps of several variants, measured in turn.

Each variant has separate processes, one for each rank, with the edited or unedited host. The time
of a step is that of the slowest rank.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from robomimic_ddp.commands.bench import compare
from robomimic_ddp.config import env
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.terminal import table, width

WORKER = "robomimic_ddp.commands.bench.step_worker"
HOST, OURS, BY_HAND = "host", "ours", "hand_written_ddp"
STEPS_ON_CUDA = 10
"""Steps that are timed together: synchronising after each would hide asynchronous work."""
_WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """A step: `batch` samples on each rank, through the host's diffusion policy with `down_dims`
    channels (empty: the host's) and `cameras` images of 128x128.
    """

    batch: int
    threads: int
    down_dims: tuple[int, ...] = ()
    cameras: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Variant:
    """`name`: HOST, OURS or BY_HAND, on `ranks` ranks; `options` of ours."""

    name: str
    options: dict[str, str] = field(default_factory=dict)
    ranks: int = 1

    @property
    def label(self) -> str:
        """Name and options, for tables."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


ON_CPU = (Variant(HOST), Variant(OURS, {"preset": "safe"}), Variant(OURS, {"preset": "fast"}))
ON_CUDA = (
    Variant(HOST),
    Variant(OURS),
    Variant(OURS, {"mode": "ddp"}),  # NCCL, with one rank
    Variant(OURS, {"precision": "bf16"}),
    Variant(OURS, {"precision": "bf16", "compile": "true"}),
)


def on_ranks(count: int) -> tuple[Variant, ...]:
    """The host in one process; DDP written by hand, and ours, on `count` ranks."""
    return Variant(HOST), Variant(BY_HAND, ranks=count), Variant(OURS, ranks=count)


class Team:
    """The ranks of one variant: processes that take steps on request, until `stack` closes."""

    def __init__(self, job: Job, variant: Variant, stack: ExitStack) -> None:
        self.variant = variant
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self._ranks = [self._start(job, rank, port, stack) for rank in range(variant.ranks)]
        begun = self._answers()[0]
        self.parameters, self.samples = begun["parameters"], begun["samples"] * variant.ranks

    def _start(self, job: Job, rank: int, port: str, stack: ExitStack) -> subprocess.Popen:
        name, world, options = self.variant.name, str(self.variant.ranks), self.variant.options
        added = {"OMP_NUM_THREADS": str(job.threads)}
        added |= {f"ROBOMIMIC_DDP_{key.upper()}": value for key, value in options.items()}
        if name == BY_HAND or world != "1" or options.get("mode") == "ddp":
            added |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
            added |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        else:
            added.setdefault("ROBOMIMIC_DDP_MODE", "single")
        launcher = ["robomimic_ddp", "run"] if name == OURS else []
        words = json.dumps({**asdict(job), "variant": name, "rank": rank})
        # A file: a compiler's warnings would fill a pipe.
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, WORKER, words],
            env={**env.child_environment([]), **added},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        process.bench_errors = errors
        stack.callback(process.communicate)
        stack.callback(process.kill)
        return process

    def step(self, count: int) -> list[dict[str, Any]]:
        """Each rank's measurement of `count` steps. Raises ConfigError if a rank has ended."""
        for process in self._ranks:
            with suppress(BrokenPipeError):  # its error follows
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        return [self._answer(process) for process in self._ranks]

    def _answer(self, process: subprocess.Popen) -> dict[str, Any]:
        for line in process.stdout:  # skips what the host prints
            if line.startswith("bench "):
                return json.loads(line[len("bench ") :])
        process.wait()
        process.bench_errors.seek(0)
        text = process.bench_errors.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a process of {self.variant.label} ended: {text[-1]}")


def measure(job: Job, rounds: int, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """A row for each variant: medians over `rounds` of interleaved steps, after some to warm up.

    cpu_seconds_per_step: the mean over ranks; peak_rss_mb: of the largest rank; loss: of the main
    rank's last step; times: ratio of our samples per second to another variant's over rounds, by
    wall time and by processor time.
    """
    count = 1 if job.device == "cpu" else STEPS_ON_CUDA
    with ExitStack() as stack:
        teams = [Team(job, variant, stack) for variant in variants]
        found = compare.interleaved(teams, _WARM_UP + rounds, lambda team: team.step(count))
    steps = [answers[_WARM_UP:] for answers in found.values()]
    walls = [[max(rank["wall"] for rank in step) for step in one] for one in steps]
    cpus = [[statistics.mean(rank["cpu"] for rank in step) for step in one] for one in steps]
    rows = []
    for team, own, wall, cpu in zip(teams, steps, walls, cpus):
        rate = 1 / statistics.median(wall)
        row = {
            "variant": team.variant.name,
            "world": team.variant.ranks,
            "options": team.variant.options,
            "device": job.device,
            "cameras": job.cameras,
            "parameters": team.parameters,
            "rounds": rounds,
            "steps_per_second": rate,
            "samples_per_second": rate * team.samples,
            "cpu_seconds_per_step": statistics.median(cpu),
            "peak_rss_mb": max(rank["peak_rss_mb"] for rank in own[-1]),
            "device_peak_mb": own[-1][0]["device_peak_mb"],
            "loss": own[-1][0]["loss"],
            "times": {},
        }
        rows.append(row)
        for base, of_wall, of_cpu in zip(teams, walls, cpus):
            if team.variant.name == OURS != base.variant.name:
                more = team.samples / base.samples
                more_of_rank = more * base.variant.ranks / team.variant.ranks
                row["times"][base.variant.name] = {
                    "clock": compare.ratio([seconds * more for seconds in of_wall], wall),
                    "processor": compare.ratio([seconds * more_of_rank for seconds in of_cpu], cpu),
                }
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table and the ratios, for the terminal."""
    labels = [Variant(row["variant"], row["options"]).label for row in rows]
    titles = ("variant", "ranks", " steps/s", "samples/s", "CPU s/step", "peak RSS", "peak GPU")
    cells = [
        (
            label,
            f"{row['world']:5}",
            f"{row['steps_per_second']:8.3f}",
            f"{row['samples_per_second']:9.1f}",
            f"{row['cpu_seconds_per_step']:10.3f}",
            f"{row['peak_rss_mb']:5.0f} MB",
            f"{row['device_peak_mb']:5.0f} MB",
        )
        for label, row in zip(labels, rows)
    ]
    shown = slice(None if rows[0]["device"] != "cpu" else -1)
    yield from table([one[shown] for one in (titles, *cells)], width())
    yield f"{rows[0]['parameters'] / 1e6:.1f} M parameters, medians of {rows[0]['rounds']} rounds"
    for label, row in zip(labels, rows):
        for base, times in row["times"].items():
            yield (
                f"{label}: {compare.shown(times['clock'])} times the samples/s of {base}, "
                f"{compare.shown(times['processor'])} by processor time (in brackets: 95 %)"
            )
