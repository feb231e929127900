"""Steps of several variants, taken in turn by processes that live side by side.

Each variant is a process of its own, so that the unedited host is unedited; a step of each makes a
round, in an order that turns. Ratios are taken within rounds: what else the machine does then meets
all variants alike.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from robomimic_ddp import env
from robomimic_ddp.bench import launched
from robomimic_ddp.errors import ConfigError

WORKER = "robomimic_ddp.bench.worker"
VARIANTS = {"host": None, "ours (safe)": {"preset": "safe"}, "ours": {"preset": "fast"}}
"""Name -> options; None: the host that is installed, without an edit."""
ON_CUDA = {
    "host": None,
    "ours": {"preset": "fast"},
    "ours, NCCL": {"mode": "ddp"},
    "ours, bf16": {"precision": "bf16"},
    "ours, bf16, compiled": {"precision": "bf16", "compile": "true"},
}
"""Variants on a CUDA device; NCCL with one rank."""
BASE = "host"
STEPS_ON_CUDA = 10
"""Taken together, between two waits for the device."""
_WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """What a step is: `batch` samples through the host's diffusion policy, whose net has
    `down_dims` channels (empty: the host's own), with `cameras` pictures of `pixels` x `pixels`;
    `loads`: batches come from a DataLoader.
    """

    batch: int
    threads: int
    down_dims: tuple = ()
    cameras: int = 0
    pixels: int = 128
    loads: bool = False
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether steps are taken on a CUDA device."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Steps:
    """What one variant measured: seconds of each step, by the clock and of the processor; `device`:
    what the profiler tells of a step on a CUDA device.
    """

    wall: list[float]
    cpu: list[float]
    peak_rss_mb: float
    parameters: int
    losses: list[float]
    samples: int = 0
    device: Mapping[str, float] = field(default_factory=dict)


class Worker:
    """A process that takes a step when told to."""

    def __init__(self, job: Job, options: Mapping[str, str] | None) -> None:
        launcher = [] if options is None else ["robomimic_ddp", "run"]
        words = [sys.executable, "-m", *launcher, WORKER, json.dumps(asdict(job))]
        added = {"ROBOMIMIC_DDP_MODE": "single"}
        for name, value in (options or {}).items():
            added[f"ROBOMIMIC_DDP_{name.upper()}"] = value
        if added["ROBOMIMIC_DDP_MODE"] == "ddp":
            added.update(launched.rank_variables(0, 1, launched.free_port()))
        # A file: a compiler's warnings would fill a pipe that nobody reads.
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            words,
            env={**env.child_environment([]), **added, "OMP_NUM_THREADS": str(job.threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.told = self._answer()
        except ConfigError:
            self.close()
            raise

    def ask(self, word: str) -> dict[str, float]:
        """The answer to a word of `worker`'s, such as "step"."""
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict:
        """The worker's next line of ours; hosts print what they like between."""
        for line in self._process.stdout:
            if line.startswith("bench "):
                return json.loads(line[len("bench ") :])
        self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a process of the benchmark ended: {text[-1]}")


def measure(job: Job, rounds: int, variants: Mapping = VARIANTS) -> dict[str, Steps]:
    """`rounds` steps of each variant, in turn, after some to warm up."""
    word = f"step {STEPS_ON_CUDA}" if job.on_gpu else "step"
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
                answers[name].append(workers[name].ask(word))
        return {name: _steps(workers[name], told, job) for name, told in answers.items()}


def _steps(worker: Worker, told: list[dict], job: Job) -> Steps:
    device = {}
    if job.on_gpu:
        worker.ask("profile")  # the first one starts the profiler
        device = worker.ask("profile")
    return Steps(
        [one["wall"] for one in told[_WARM_UP:]],
        [one["cpu"] for one in told[_WARM_UP:]],
        told[-1]["peak_rss_mb"],
        worker.told["parameters"],
        [one["loss"] for one in told],
        worker.told["samples"],
        device,
    )
