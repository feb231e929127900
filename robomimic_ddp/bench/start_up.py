"""`bench scale --start-up`: what one rank of many pays at the start, at each epoch, in each step.

In one process, with torch's fake process group, whose messages take no time: this is the work of
a rank, not the time of the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from robomimic_ddp.env import LaunchEnv
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.options import resolve
from robomimic_ddp.plan import make_plan

WORLDS = (2, 128, 1024)
EPISODES, FILES, WINDOWS = 76_000, 1_900, 300
"""Of DROID's size."""
SAMPLES, BATCH, ITEMS = 1_000_000, 16, 500
_REPEATS = 3
_STEPS = 100


def rows(worlds: Sequence[int] = WORLDS, episodes: int = EPISODES) -> list[dict[str, Any]]:
    """One row for each part and number of ranks: seconds, the least of a few tries, on one rank."""
    found = []
    for world in worlds:
        with _fake_group(world):
            for name, when, work in _parts(world, episodes):
                seconds = min(_timed(work) for _ in range(_REPEATS))
                found.append({"part": name, "when": when, "world": world, "seconds": seconds})
    return found


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextmanager
def _fake_group(world: int) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    try:
        from torch.testing._internal.distributed import fake_pg  # noqa: F401, registers the backend
    except ImportError as error:
        raise ConfigError(
            f"--start-up puts {world} ranks into one process by torch's fake process group, which "
            f"torch {torch.__version__} does not have: {error}. Use a later torch."
        ) from error
    dist.init_process_group("fake", rank=world - 1, world_size=world, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _parts(world: int, episodes: int) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(what, when, work) of the last rank."""
    import numpy as np

    from robomimic_ddp import group, random_streams, stopping
    from robomimic_ddp.rlds.course import Course, Leg
    from robomimic_ddp.rlds.quotas import Quotas
    from robomimic_ddp.sampling import ShardedSampler, order_of
    from robomimic_ddp.verify.comparison import Evidence

    rank = world - 1
    table = np.arange(episodes) * FILES // episodes, np.full(episodes, WINDOWS)
    leg = Leg(world, BATCH, max(2, 100_000 // world))

    def resume() -> None:
        course = Course(*table, 0, leg)
        later = course.followed_by(Leg(max(1, world // 2), BATCH, 1000), course.batches_in(0) // 2)
        later.share(0, 0)

    def pass_of_sampler() -> None:
        order = order_of(range(SAMPLES), None, True, 0)
        sampler = ShardedSampler(order, SAMPLES, rank=rank, world_size=world, drop_last=True)
        sampler.telling_digest()

    def steps() -> None:
        stopper = stopping.Stopper()
        for _ in range(_STEPS):
            stopper.agreed()

    merge = _merge(world, episodes)
    equal = {f"parameter {number}": (number, number) for number in range(ITEMS)}
    yield "plan, printed", "start", lambda: _plan(rank, world).describe()
    yield f"statistics of {episodes} episodes, from all ranks' parts", "start", merge
    yield "RLDS: the rest of a pass over half the ranks (resume)", "start", resume
    yield (
        f"RLDS: a rank's share of {episodes} episodes",
        "epoch",
        lambda: Course(*table, 0, leg).share(1, rank),
    )
    yield f"sampler: a pass of {SAMPLES} samples, drawn and shared", "epoch", pass_of_sampler
    yield (
        f"mixture: quotas of {_STEPS} batches",
        "epoch",
        lambda: Quotas([0.5, 0.3, 0.2], BATCH).of(_STEPS),
    )
    yield f"verify: {ITEMS} items compared", "epoch", Evidence("here", equal=equal).require
    yield (
        "save: random streams of all ranks",
        "epoch",
        lambda: group.gather_objects(random_streams.capture()),
    )
    yield f"stop? asked in {_STEPS} steps", "step", steps


def _plan(rank: int, world: int) -> Any:
    local = min(world, 8)
    env = LaunchEnv(
        launched=True,
        rank=rank,
        world_size=world,
        local_rank=rank % local,
        local_world_size=local,
    )
    return make_plan(
        env, resolve({}), visible_gpus=local, use_cuda=True, batch_size=BATCH, cores=64
    )


def _merge(world: int, episodes: int) -> Callable[[], Any]:
    """Joins the parts of the index, and merges the actions' statistics of all episodes."""
    import numpy as np

    from robomimic_ddp.rlds.statistics import QUANTILE_STEPS, Index, Moments, merged

    draw = np.random.RandomState(0)

    def moments(count: int) -> Moments:
        return Moments(*(draw.rand(count, 10) for _ in range(4)))

    def part(number: int) -> Index:
        count = (number + 1) * episodes // world - number * episodes // world
        yes, zeros = np.ones(count, bool), np.zeros(count, np.int64)
        return Index(
            file=zeros + number,
            offset=np.arange(count),
            length=zeros + WINDOWS,
            labelled=yes,
            success=yes,
            texts=np.full(count, b"text"),
            passed=yes[:, None],
            sampled=np.zeros((count, QUANTILE_STEPS, 10), np.float32),
            actions=moments(count),
            states=moments(count),
        )

    parts = [part(number) for number in range(world)]

    def work() -> None:
        index = merged(parts)
        index.actions.merged(index.length, np.arange(episodes))

    return work


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines for the terminal."""
    worlds = list(dict.fromkeys(row["world"] for row in found))
    parts = dict.fromkeys((row["part"], row["when"]) for row in found)
    width = max(len(part) for part, _ in parts)
    yield (
        "Seconds of one rank's work, in one process with a process group whose messages take no "
        "time (the network is not in them)"
    )
    yield f"{'':{width}} {'':6}" + "".join(f"{world:>10}" for world in worlds) + "  ranks"
    for part, when in parts:
        told = [row["seconds"] for row in found if row["part"] == part]
        yield f"{part:{width}} {when:6}" + "".join(f"{seconds:10.4f}" for seconds in told)
    for when in ("start", "epoch"):
        total = sum(
            row["seconds"] for row in found if row["when"] == when and row["world"] == worlds[-1]
        )
        yield f"each {when} at {worlds[-1]} ranks: {total:.2f} s"
