"""The random streams of an episode: a function of (seed, epoch, environment, episode), so that
episodes do not depend on who plays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import rng

_STREAM = 0x5EED
"""Separates the streams of rollouts from others by the run's seed."""


def streams(seed: int, epoch: int | None) -> tuple[int, ...]:
    """Return what the streams of all episodes of an epoch have in common. seed: the run's."""
    return _STREAM, seed, epoch or 0


def seeded(
    env: Any, episodes: Iterable[int], of_epoch: tuple[int, ...], number: int
) -> AbstractContextManager:
    """For the block, each `reset` of `env`, the environment of this `number`, seeds the streams of
    its next episode. of_epoch: the result of `streams`.

    The host resets once an episode, before the policy draws; only the outermost environment counts,
    since wrappers may reset again.
    """
    return swapped(env, "reset", _reset_of(env, iter(episodes), (*of_epoch, number)))


def _reset_of(env: Any, episodes: Iterator[int], entropy: tuple[int, ...]) -> Callable:
    reset = env.reset

    def seeded_reset(*args: Any, **kwargs: Any) -> Any:
        episode = next(episodes, None)
        if episode is not None:
            rng.seed(*entropy, episode)
            for number, generator in enumerate(_private_generators(env)):
                _seed_in_place(generator, *entropy, episode, number)
        return reset(*args, **kwargs)

    return seeded_reset


def _private_generators(env: Any) -> Iterator[np.random.Generator]:
    """Yield the numpy generators of an environment, and of those that it wraps as `env`:
    robosuite's `rng` (1.5), gymnasium's `_np_random`. Seeded by the simulator they would draw the
    same episodes on every rank, and unseeded, different ones each time.
    """
    seen: list[Any] = []
    while env is not None and not any(env is earlier for earlier in seen):
        seen.append(env)
        attributes = getattr(env, "__dict__", {})
        for value in (attributes.get("rng"), attributes.get("_np_random")):
            if isinstance(value, np.random.Generator):
                yield value
        env = attributes.get("env")


def _seed_in_place(generator: np.random.Generator, *entropy: int) -> None:
    """Seed `generator` in place, since robosuite's samplers share it."""
    kind = type(generator.bit_generator)
    seed = np.random.SeedSequence([word % 2**64 for word in entropy])
    generator.bit_generator.state = kind(seed).state
