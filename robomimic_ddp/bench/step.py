"""Steps of several variants, taken in turn by processes that live side by side.

Each variant is a process of its own, so that the unedited host is unedited; a step of each makes a
round, in an order that turns. Ratios are taken within rounds: what else the machine does then meets
all variants alike.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from robomimic_ddp import env
from robomimic_ddp.errors import ConfigError

WORKER = "robomimic_ddp.bench.worker"
VARIANTS = {"host": None, "ours (safe)": {"preset": "safe"}, "ours": {"preset": "fast"}}
"""Name -> options; None: the host that is installed, without an edit."""
BASE = "host"
_WARM_UP = 2
_RESAMPLES = 2000


@dataclass(frozen=True)
class Job:
    """What a step is: `batch` low-dim samples through the host's diffusion policy, whose net has
    `down_dims` channels (empty: the host's own).
    """

    batch: int
    threads: int
    down_dims: tuple = ()


@dataclass(frozen=True)
class Steps:
    """What one variant measured: seconds of each step, by the clock and of the processor."""

    wall: list[float]
    cpu: list[float]
    peak_rss_mb: float
    parameters: int
    losses: list[float]


class Worker:
    """A process that takes a step when told to."""

    def __init__(self, job: Job, options: Mapping[str, str] | None) -> None:
        launcher = [] if options is None else ["robomimic_ddp", "run"]
        words = [sys.executable, "-m", *launcher, WORKER, json.dumps(asdict(job))]
        added = {"ROBOMIMIC_DDP_MODE": "single"}
        for name, value in (options or {}).items():
            added[f"ROBOMIMIC_DDP_{name.upper()}"] = value
        self._process = subprocess.Popen(
            words,
            env={**env.child_environment([]), **added, "OMP_NUM_THREADS": str(job.threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told = self._answer()

    def step(self) -> dict[str, float]:
        """One training step: {"wall", "cpu", "loss", "peak_rss_mb"}."""
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict:
        """The worker's next line of ours; hosts print what they like between."""
        for line in self._process.stdout:
            if line.startswith("bench "):
                return json.loads(line[len("bench ") :])
        text = self._process.communicate()[1].strip().splitlines() or ["no output"]
        raise ConfigError(f"a process of the benchmark ended: {text[-1]}")


def measure(job: Job, rounds: int, variants: Mapping = VARIANTS) -> dict[str, Steps]:
    """`rounds` steps of each variant, in turn, after some to warm up."""
    with ExitStack() as stack:
        workers = {}
        for name, options in variants.items():
            workers[name] = Worker(job, options)
            stack.callback(workers[name].close)
        answers: dict[str, list[dict]] = {name: [] for name in workers}
        for number in range(_WARM_UP + rounds):
            names = list(workers)
            random.Random(number).shuffle(names)
            for name in names:
                answers[name].append(workers[name].step())
        return {
            name: Steps(
                [one["wall"] for one in told[_WARM_UP:]],
                [one["cpu"] for one in told[_WARM_UP:]],
                told[-1]["peak_rss_mb"],
                workers[name].told["parameters"],
                [one["loss"] for one in told],
            )
            for name, told in answers.items()
        }


def rows(job: Job, measured: Mapping[str, Steps], variants: Mapping = VARIANTS) -> list[dict]:
    """One row for each variant, by medians."""
    found = []
    for name, steps in measured.items():
        rate = 1 / statistics.median(steps.wall)
        found.append(
            {
                "variant": name,
                "world": 1,
                "options": dict(variants[name] or {}),
                "parameters": steps.parameters,
                "steps_per_second": rate,
                "samples_per_second": rate * job.batch,
                "cpu_seconds_per_step": statistics.median(steps.cpu),
                "peak_rss_mb": steps.peak_rss_mb,
                "comm_share": 0.0,
            }
        )
    return found


def table(found: Sequence[dict]) -> Iterator[str]:
    """Lines for the terminal."""
    yield f"{'variant':12} {'steps/s':>8} {'samples/s':>10} {'CPU s/step':>11} {'peak RSS':>9}"
    for row in found:
        yield (
            f"{row['variant']:12} {row['steps_per_second']:8.3f} "
            f"{row['samples_per_second']:10.1f} {row['cpu_seconds_per_step']:11.3f} "
            f"{row['peak_rss_mb']:6.0f} MB"
        )
    yield f"{found[0]['parameters'] / 1e6:.1f} M parameters"


def ratios(measured: Mapping[str, Steps]) -> Iterator[str]:
    """How many times as fast as the host each variant is: medians over rounds with an interval of
    95 % (resampled rounds).
    """
    base = measured[BASE]
    for name, steps in measured.items():
        if name == BASE:
            continue
        for what in ("wall", "cpu"):
            each = [a / b for a, b in zip(getattr(base, what), getattr(steps, what))]
            low, high = interval(each)
            clock = "by the clock" if what == "wall" else "of processor time"
            yield (
                f"{name}: {statistics.median(each):.2f} times the host's steps per second {clock} "
                f"(95 %: {low:.2f} to {high:.2f}, {len(each)} rounds)"
            )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, from resampled values; the same for the same values."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
