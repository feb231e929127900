"""`bench step --ranks N`: our steps on several ranks beside the host's and hand-written loops.

Ours and one other variant live side by side and take steps in turn, in an order that is drawn anew;
ratios are taken within such pairs, so that what else the machine does meets both alike. A step of
several ranks takes as long as that of its slowest rank.
"""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from robomimic_ddp.bench import every_option
from robomimic_ddp.bench.output import tell
from robomimic_ddp.bench.team import HOST, OURS, Job, Team, Variant
from robomimic_ddp.errors import ConfigError

OTHERS = (HOST, "hand_written_ddp", "tutorial_ddp", "accelerate", "fabric")
PACKAGES = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
_WARM_UP = 3
_LEAST_REPEATS = 5


@dataclass
class Measured:
    """What one variant showed: `wall` seconds of each step, `local` of steps without reductions,
    `reducing` seconds of all-reduces in a step by the profiler; `ratios`: its step's time over that
    of ours beside it; `samples` of a rank in a step; `sent`: bytes that it gives to all-reduces in
    a step, by ddp.comm, and as `chosen`.
    """

    variant: Variant
    world: int
    parameters: int = 0
    samples: int = 0
    wall: list = field(default_factory=list)
    cpu: list = field(default_factory=list)
    ratios: list = field(default_factory=list)
    whole: list = field(default_factory=list)
    local: list = field(default_factory=list)
    reducing: list = field(default_factory=list)
    tensor_bytes: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)
    peak_rss_mb: float = 0.0
    missing: str | None = None

    @property
    def exposed(self) -> float:
        """Share of a step that all-reduces lengthen it by: with them against without."""
        if not self.local:
            return 0.0
        return max(0.0, 1 - statistics.median(self.local) / statistics.median(self.whole))


def measure(
    job: Job,
    rounds: int,
    beside: Sequence[str],
    with_options: Sequence[dict] = (),
    longest: float = math.inf,
) -> list[Measured]:
    """Ours, then each variant of `beside` next to it for `rounds` pairs of steps; for fewer, but
    not less than a few, where they take more than `longest` seconds.
    """
    others = [Variant(name) for name in beside]
    others += [Variant(OURS, options) for options in with_options]
    with ExitStack() as stack:
        team = Team(job, Variant(OURS))
        stack.callback(team.close)
        ours = Measured(team.variant, team.world, **_told(team))
        found = [ours]
        for number, variant in enumerate(others, 1):
            tell(f"{number} of {len(others)}: {variant.label} ...")
            measured = _beside(job, variant, team, ours, rounds, longest)
            found.append(measured)
            if measured.ratios:
                ratio = 1 / statistics.median(measured.ratios)
                tell(f"  ours takes {ratio:.3f} of its time ({len(measured.ratios)} pairs)")
        _communication(team, ours, rounds)
        return found


def _beside(
    job: Job, variant: Variant, ours: Team, of_ours: Measured, rounds: int, longest: float
) -> Measured:
    """At most `rounds` pairs of steps of ours and `variant`, and what its communication takes."""
    package = PACKAGES.get(variant.name)
    if package is not None and importlib.util.find_spec(package) is None:
        return Measured(variant, job.ranks, missing=f"{package} is not installed")
    try:
        team = Team(job, variant)
    except ConfigError as error:
        if variant.options not in every_option.OPTIONS:
            raise
        return Measured(variant, job.ranks, missing=str(error))  # of a torch without the option
    measured = Measured(variant, team.world, **_told(team))
    try:
        draw, before = random.Random(variant.label), len(of_ours.wall)
        for number in range(_WARM_UP + rounds):
            if number == _WARM_UP:
                ends = time.monotonic() + longest
            elif number >= _WARM_UP + _LEAST_REPEATS and time.monotonic() > ends:
                break
            pair = [(ours, of_ours), (team, measured)]
            draw.shuffle(pair)
            for one, to in pair:
                told = one.ask("step")
                to.wall.append(max(rank["wall"] for rank in told))
                to.cpu.append(statistics.mean(rank["cpu"] for rank in told))
            if number >= _WARM_UP:
                measured.ratios.append(measured.wall[-1] / of_ours.wall[-1])
        del measured.wall[:_WARM_UP], measured.cpu[:_WARM_UP]
        del of_ours.wall[before : before + _WARM_UP], of_ours.cpu[before : before + _WARM_UP]
        _communication(team, measured, len(measured.ratios))
    finally:
        team.close()
    return measured


def _told(team: Team) -> dict[str, int]:
    return {name: team.told[0][name] for name in ("parameters", "samples")}


def _communication(team: Team, measured: Measured, rounds: int) -> None:
    """Steps with and without reductions in turn, then memory and the profiler's view. Last: without
    reductions the ranks part.
    """
    told = team.ask("memory")[0]
    measured.tensor_bytes = told
    if team.world > 1:
        measured.sent = team.ask("sent")[0]
        repeats = max(_LEAST_REPEATS, rounds // 3)
        for _ in range(2):
            measured.reducing.append(team.ask("profile")[0])
        for _ in range(repeats):
            measured.whole.append(team.slowest("step"))
            measured.local.append(team.slowest("local"))
    measured.peak_rss_mb = max(rank["peak_rss_mb"] for rank in team.ask("step"))
