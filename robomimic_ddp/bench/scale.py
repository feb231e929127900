"""What `bench scale` measures: a step in its parts on one rank, and steps and all-reduces of a few
ranks that the model is held against.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from robomimic_ddp import env
from robomimic_ddp.bench.model import Link, Step, fitted, ring
from robomimic_ddp.bench.team import OURS, Job, Team, Variant

SIZES = (64 * 1024, 16 * 2**20)
"""Bytes of the all-reduces that gloo's latency and bandwidth are fitted to."""
_WARM_UP = 3


@dataclass(frozen=True)
class Compute:
    """Medians of one rank's steps. seconds: [forward, backward, rest] with `samples` and with
    `fewer` samples; sent: bytes by ddp.comm.
    """

    samples: int
    fewer: int
    seconds: tuple[float, float, float]
    of_fewer: tuple[float, float, float]
    parameters: int
    sent: dict[str, int]

    def step(self, comm: str, bucket: float, overlap: float) -> Step:
        """The step for the model: forward and backward through two batch sizes are a line, whose
        beginning counts as `fixed`.
        """
        pass_seconds = sum(self.seconds[:2])
        slope = (pass_seconds - sum(self.of_fewer[:2])) / max(self.samples - self.fewer, 1)
        slope = min(max(slope, 0.01 * pass_seconds / self.samples), pass_seconds / self.samples)
        return Step(
            per_sample=slope,
            fixed=self.seconds[2] + pass_seconds - slope * self.samples,
            backward_share=self.seconds[1] / pass_seconds,
            size=self.sent[comm],
            bucket=bucket,
            overlap=overlap,
        )


@dataclass(frozen=True)
class Checked:
    """Steps of `world` gloo ranks, medians in seconds: `whole`; `local`, without sending;
    `backward`, of a local step; `predicted` from `link`, fitted at this number of ranks, and
    `from_two` from the one fitted at the fewest ranks; `reduces`: seconds for each of SIZES.
    """

    world: int
    whole: float
    local: float
    backward: float
    overlap: float
    reduces: tuple[float, ...]
    link: Link
    predicted: float
    from_two: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.whole - 1

    @property
    def error_from_two(self) -> float:
        """The same with the link of the fewest ranks."""
        return self.from_two / self.whole - 1


def measure_compute(job: Job, rounds: int) -> Compute:
    """`rounds` steps of one process with `job.batch` samples, in turn with a quarter of them."""
    fewer = max(1, job.batch // 4)
    team = Team(replace(job, ranks=1), Variant(OURS))
    try:
        told: dict[int, list[dict]] = {job.batch: [], fewer: []}
        for number in range(_WARM_UP + rounds):
            for samples, found in told.items():
                team.ask(f"samples {samples}")
                answer = team.ask("parts")[0]
                if number >= _WARM_UP:
                    found.append(answer)
        sent = team.ask("sent")[0]
        parameters = team.told[0]["parameters"]
    finally:
        team.close()
    return Compute(
        job.batch, fewer, _medians(told[job.batch]), _medians(told[fewer]), parameters, sent
    )


def _medians(told: Sequence[dict]) -> tuple[float, float, float]:
    parts = (statistics.median(one[name] for one in told) for name in ("forward", "backward"))
    return (*parts, statistics.median(one["rest"] for one in told))


def usable_overlap(world: int) -> float:
    """Share of the backward pass in which ranks on this machine can send for nothing: gloo adds up
    with a core's time, so that of cores which no rank computes on.
    """
    return min(1.0, max(0, env.usable_cores() - world) / world)


def check(
    job: Job, worlds: Sequence[int], rounds: int, step: Step, tell: Callable[[str], None]
) -> list[Checked]:
    """Steps of `worlds` numbers of gloo ranks on this machine, and what the model says of them from
    all-reduces alone and from steps without sending at the same number of ranks.
    """
    found: list[Checked] = []
    for world in worlds:
        tell(f"{world} gloo ranks ...")
        found.append(_check(replace(job, ranks=world), rounds, step, found[0] if found else None))
    return found


def _check(job: Job, rounds: int, step: Step, fewest: Checked | None) -> Checked:
    team = Team(job, Variant(OURS))
    words = ["step", *(f"reduce {size}" for size in SIZES), "local"]
    seconds: dict[str, list[float]] = {word: [] for word in words}
    try:
        for number in range(_WARM_UP + rounds):
            for word in words:  # a local step last: ranks part in it, which no time depends on
                taken = team.slowest(word)
                if number >= _WARM_UP:
                    seconds[word].append(taken)
    finally:
        team.close()
    whole, *reduces, local = (statistics.median(seconds[word]) for word in words)
    world, overlap = job.ranks, usable_overlap(job.ranks)
    link = fitted(SIZES, tuple(reduces), world, f"gloo, {world} ranks")
    # Forward and backward slow down alike where ranks share cores.
    backward = local * step.backward(job.batch) / step.compute(job.batch)
    placed = Step(
        per_sample=backward / step.backward_share / job.batch,
        fixed=local - backward / step.backward_share,
        backward_share=step.backward_share,
        size=step.size,
        bucket=step.bucket,
        overlap=overlap,
    )

    def predicted(of: Link) -> float:
        return placed.seconds(job.batch, world, lambda size, ranks: ring(of, size, ranks))

    first = link if fewest is None else fewest.link
    return Checked(
        world, whole, local, backward, overlap, tuple(reduces), link, predicted(link),
        predicted(first),
    )  # fmt: skip
