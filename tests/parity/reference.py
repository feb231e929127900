"""One process that trains for all ranks: the batch is the concatenation of the ranks' batches.

Every random number comes from a rank's own stream: for each rank the whole state of torch's
generator is kept, and noise, timesteps and crops are the concatenation of what the ranks would
draw.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

import torch

from robomimic_ddp import run, sampling
from tests.parity.training import Job, build, one_step, result_of, use_host


class RankStreams:
    """torch's default generator, one state for each rank; `draw` switches to it and back."""

    def __init__(self, seed: int, world_size: int) -> None:
        start = torch.get_rng_state()
        self.states = []
        for rank in range(world_size):
            torch.set_rng_state(start)
            run.seed_streams(seed, rank)
            self.states.append(torch.get_rng_state())
        torch.set_rng_state(start)

    def draw(self, rank: int, function: Callable) -> Any:
        """`function()` with rank's stream, which moves on."""
        kept = torch.get_rng_state()
        torch.set_rng_state(self.states[rank])
        value = function()
        self.states[rank] = torch.get_rng_state()
        torch.set_rng_state(kept)
        return value

    def draw_all(self, function: Callable) -> torch.Tensor:
        """`function()` of every rank, joined along the first dimension."""
        return torch.cat([self.draw(rank, function) for rank in range(len(self.states))])

    @contextmanager
    def installed(self) -> Any:
        """torch's functions that the host draws with take each rank's rows from its stream."""
        ranks, real = len(self.states), {}

        def rows(shape: Any) -> tuple:
            assert shape[0] % ranks == 0, shape
            return shape[0] // ranks, *shape[1:]

        def randn(*shape: Any, **kwargs: Any) -> torch.Tensor:
            own = rows(shape[0] if isinstance(shape[0], (tuple, torch.Size)) else shape)
            return self.draw_all(partial(real["randn"], own, **kwargs))

        def rand(*shape: Any, **kwargs: Any) -> torch.Tensor:
            return self.draw_all(partial(real["rand"], rows(shape), **kwargs))

        def randint(low: int, high: int, shape: Any, **kwargs: Any) -> torch.Tensor:
            return self.draw_all(partial(real["randint"], low, high, rows(shape), **kwargs))

        def randn_like(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            # SpatialSoftmax draws its noise in training even at noise_std 0.
            part = tensor[: len(tensor) // ranks]
            return self.draw_all(partial(real["randn_like"], part, **kwargs))

        with ExitStack() as stack:
            for function in (randn, rand, randint, randn_like):
                real[function.__name__] = getattr(torch, function.__name__)
                stack.enter_context(mock.patch.object(torch, function.__name__, function))
            yield


class EndlessBatches:
    """A rank's batches, pass after pass, as the host's epoch loop takes them."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, iter(())

    def __call__(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


def loader_of(built: SimpleNamespace, rank: int, world_size: int) -> Any:
    """The train loader that `rank` would have."""
    seed, size = built.config.train.seed, built.config.train.batch_size
    dataset = built.loader_arguments["dataset"]
    if hasattr(dataset, "make_loader"):
        return dataset.make_loader(size, rank, world_size, seed)
    return sampling.train_loader(
        torch.utils.data.DataLoader,
        built.loader_arguments,
        rank=rank,
        world_size=world_size,
        seed=seed,
        batch_size_per_rank=size,
    )


def train_for_all_ranks(job: Job, world_size: int) -> dict:
    """The job of `world_size` ranks; `losses[step]` is the loss over the whole batch."""
    use_host(job.host)
    built = build(job.settings)
    streams = RankStreams(built.config.train.seed, world_size)
    batches = [EndlessBatches(loader_of(built, rank, world_size)) for rank in range(world_size)]
    losses: list = []
    built.model.set_train()
    while len(losses) < job.steps:
        parts = [streams.draw(rank, batches[rank]) for rank in range(world_size)]
        with streams.installed(), job.clipping():
            losses.append(one_step(built.model, concatenate(parts)))
    return result_of(built.model, losses)


def concatenate(parts: list) -> Any:
    """Nested dictionaries of tensors [B, ...] or lists of B strings, joined along B."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return torch.cat(parts)
