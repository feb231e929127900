"""`bench step --ranks N`: our steps on several ranks beside the host's and hand-written loops.

Ours and one other variant live side by side and take steps in turn, in an order that is drawn anew;
ratios are taken within such pairs, so that what else the machine does meets both alike. A step of
several ranks takes as long as that of its slowest rank.
"""

from __future__ import annotations

import importlib.util
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from robomimic_ddp import env
from robomimic_ddp.bench.step import WORKER
from robomimic_ddp.errors import ConfigError

OURS, HOST = "ours", "host"
OTHERS = (HOST, "hand_written_ddp", "tutorial_ddp", "accelerate", "fabric")
PACKAGES = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
_WARM_UP = 3
_LEAST_REPEATS = 5


@dataclass(frozen=True)
class Job:
    """What a step is: `batch` low-dim samples on each of `ranks` ranks, through the host's
    diffusion policy with a net of `down_dims` channels (empty: the host's own).
    """

    batch: int
    threads: int
    ranks: int
    down_dims: tuple = ()


@dataclass(frozen=True)
class Variant:
    """`name` as in the rows; `options` of ours."""

    name: str
    options: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and options, for people."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


@dataclass
class Measured:
    """What one variant showed: `wall` seconds of each step, `local` of steps without reductions,
    `reducing` seconds of all-reduces in a step by the profiler; `ratios`: its step's time over that
    of ours beside it.
    """

    variant: Variant
    world: int
    parameters: int = 0
    wall: list = field(default_factory=list)
    cpu: list = field(default_factory=list)
    ratios: list = field(default_factory=list)
    whole: list = field(default_factory=list)
    local: list = field(default_factory=list)
    reducing: list = field(default_factory=list)
    tensor_bytes: dict = field(default_factory=dict)
    peak_rss_mb: float = 0.0
    missing: str | None = None

    @property
    def exposed(self) -> float:
        """Share of a step that all-reduces lengthen it by: with them against without."""
        if not self.local:
            return 0.0
        return max(0.0, 1 - statistics.median(self.local) / statistics.median(self.whole))


class Team:
    """The ranks of one variant, as processes that wait for a word."""

    def __init__(self, job: Job, variant: Variant) -> None:
        self.variant, self.world = variant, 1 if variant.name == HOST else job.ranks
        self._stack = ExitStack()
        port = _free_port()
        self._members = [self._start(job, rank, port) for rank in range(self.world)]
        self.told = self.ask(None)

    def _start(self, job: Job, rank: int, port: int) -> subprocess.Popen:
        name = self.variant.name
        words = {"batch": job.batch, "threads": job.threads, "down_dims": list(job.down_dims)}
        words.update(variant=name, rank=rank, world=self.world)
        launcher = ["robomimic_ddp", "run"] if name == OURS else []
        added = {f"ROBOMIMIC_DDP_{key.upper()}": str(v) for key, v in self.variant.options.items()}
        added["OMP_NUM_THREADS"] = str(job.threads)
        if self.world > 1:
            added.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                GROUP_RANK="0",
                WORLD_SIZE=str(self.world),
                LOCAL_WORLD_SIZE=str(self.world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID="bench",  # how Fabric knows that ranks have been started
            )
        errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        started = subprocess.Popen(
            [sys.executable, "-m", *launcher, WORKER, json.dumps(words)],
            env={**env.child_environment([]), **added},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        started.bench_errors = errors
        self._stack.callback(started.communicate)
        self._stack.callback(started.kill)
        return started

    def ask(self, word: str | None) -> list[dict]:
        """Each rank's answer to `word`; to None what it tells by itself."""
        for member in self._members:
            if word is not None:
                member.stdin.write(f"{word}\n")
                member.stdin.flush()
        return [self._answer(member) for member in self._members]

    def _answer(self, member: subprocess.Popen) -> dict:
        for line in member.stdout:
            if line.startswith("bench "):
                return json.loads(line[len("bench ") :])
        member.bench_errors.seek(0)
        text = member.bench_errors.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a rank of {self.variant.label} ended: {text[-1]}")

    def slowest(self, word: str = "step", what: str = "wall") -> float:
        """Seconds of a step."""
        return max(told[what] for told in self.ask(word))

    def close(self) -> None:
        """Ends the ranks."""
        self._stack.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def measure(
    job: Job, rounds: int, beside: Sequence[str], with_options: Sequence[dict] = ()
) -> list[Measured]:
    """Ours, then each variant of `beside` next to it for `rounds` pairs of steps."""
    others = [Variant(name) for name in beside]
    others += [Variant(OURS, options) for options in with_options]
    with ExitStack() as stack:
        team = Team(job, Variant(OURS))
        stack.callback(team.close)
        ours = Measured(team.variant, team.world, team.told[0]["parameters"])
        found = [ours]
        for variant in others:
            found.append(_beside(job, variant, team, ours, rounds))
        _communication(team, ours, rounds)
        return found


def _beside(job: Job, variant: Variant, ours: Team, of_ours: Measured, rounds: int) -> Measured:
    """`rounds` pairs of steps of ours and of `variant`, and what its communication takes."""
    package = PACKAGES.get(variant.name)
    if package is not None and importlib.util.find_spec(package) is None:
        return Measured(variant, job.ranks, missing=f"{package} is not installed")
    team = Team(job, variant)
    measured = Measured(variant, team.world)
    try:
        measured.parameters = team.told[0]["parameters"]
        draw = random.Random(variant.label)
        for number in range(_WARM_UP + rounds):
            pair = [(ours, of_ours), (team, measured)]
            draw.shuffle(pair)
            for one, to in pair:
                told = one.ask("step")
                to.wall.append(max(rank["wall"] for rank in told))
                to.cpu.append(statistics.mean(rank["cpu"] for rank in told))
            if number >= _WARM_UP:
                measured.ratios.append(measured.wall[-1] / of_ours.wall[-1])
        del measured.wall[:_WARM_UP], measured.cpu[:_WARM_UP]
        del of_ours.wall[-_WARM_UP - rounds : -rounds], of_ours.cpu[-_WARM_UP - rounds : -rounds]
        _communication(team, measured, rounds)
    finally:
        team.close()
    return measured


def _communication(team: Team, measured: Measured, rounds: int) -> None:
    """Steps with and without reductions in turn, then memory and the profiler's view. Last: without
    reductions the ranks part.
    """
    told = team.ask("memory")[0]
    measured.tensor_bytes = told
    if team.world > 1:
        repeats = max(_LEAST_REPEATS, rounds // 3)
        for _ in range(2):
            measured.reducing.append(team.ask("profile")[0])
        for _ in range(repeats):
            measured.whole.append(team.slowest("step"))
            measured.local.append(team.slowest("local"))
    measured.peak_rss_mb = max(rank["peak_rss_mb"] for rank in team.ask("step"))
