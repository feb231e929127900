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

from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import rng
from tests.parity.training import Job, build, one_step, only_forward, result_of, use_host


class RankStreams:
    """torch's default generator, one state for each rank; `draw` switches to it and back.

    `micro_batches`: a rank draws for one after the other; see `begin_step`.
    """

    def __init__(self, seed: int, world_size: int, micro_batches: int = 1) -> None:
        start = torch.get_rng_state()
        self.of_ranks, self.micro_batches = [], micro_batches
        for rank in range(world_size):
            torch.set_rng_state(start)
            rng.seed_streams(seed, rank)
            self.of_ranks.append(torch.get_rng_state())
        torch.set_rng_state(start)
        self.states = self.of_ranks

    def begin_step(self, forward: Callable) -> None:
        """Until `end_step`, `states` are those at the beginning of each micro-batch of each rank.

        A rank draws everything for its first micro-batch, then everything for the next; in one
        forward of all of them the first draw of each comes before the second of any. So
        `forward()` is run beforehand, to see what is drawn.
        """
        if self.micro_batches == 1:
            return
        drawn: list[Callable] = []
        kept = torch.get_rng_state()
        self.states = [kept] * (len(self.of_ranks) * self.micro_batches)
        with self.installed(drawn):
            forward()
        torch.set_rng_state(kept)
        self.states, self.after = [], []
        for state in self.of_ranks:
            for _ in range(self.micro_batches):
                self.states.append(state)
                torch.set_rng_state(state)
                for function in drawn:
                    function()
                state = torch.get_rng_state()
            self.after.append(state)
        torch.set_rng_state(kept)

    def end_step(self) -> None:
        """The ranks' streams are where the last micro-batch has left them."""
        if self.micro_batches > 1:
            last = self.states[self.micro_batches - 1 :: self.micro_batches]
            assert all(map(torch.equal, last, self.after)), "the step drew something else"
            self.of_ranks = self.states = self.after

    def draw(self, rank: int, function: Callable) -> Any:
        """`function()` with rank's stream, which moves on."""
        kept = torch.get_rng_state()
        torch.set_rng_state(self.states[rank])
        value = function()
        self.states[rank] = torch.get_rng_state()
        torch.set_rng_state(kept)
        return value

    def draw_all(self, function: Callable, drawn: list) -> torch.Tensor:
        """`function()` of every rank, joined along the first dimension; noted in `drawn`."""
        drawn.append(function)
        return torch.cat([self.draw(rank, function) for rank in range(len(self.states))])

    @contextmanager
    def installed(self, drawn: list | None = None) -> Any:
        """torch's functions that the host draws with take each rank's rows from its stream."""
        ranks, real, drawn = len(self.states), {}, [] if drawn is None else drawn

        def rows(shape: Any) -> tuple:
            assert shape[0] % ranks == 0, shape
            return shape[0] // ranks, *shape[1:]

        def randn(*shape: Any, **kwargs: Any) -> torch.Tensor:
            own = rows(shape[0] if isinstance(shape[0], (tuple, torch.Size)) else shape)
            return self.draw_all(partial(real["randn"], own, **kwargs), drawn)

        def rand(*shape: Any, **kwargs: Any) -> torch.Tensor:
            return self.draw_all(partial(real["rand"], rows(shape), **kwargs), drawn)

        def randint(low: int, high: int, shape: Any, **kwargs: Any) -> torch.Tensor:
            own = partial(real["randint"], low, high, rows(shape), **kwargs)
            return self.draw_all(own, drawn)

        def randn_like(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            # SpatialSoftmax draws its noise in training even at noise_std 0.
            part = tensor[: len(tensor) // ranks]
            return self.draw_all(partial(real["randn_like"], part, **kwargs), drawn)

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


def loader_of(built: SimpleNamespace, rank: int, world_size: int, micro_batches: int = 1) -> Any:
    """The train loader that `rank` would have."""
    seed, size = built.config.train.seed, built.config.train.batch_size * micro_batches
    dataset = built.loader_arguments["dataset"]
    if hasattr(dataset, "is_rlds"):
        from robomimic_ddp.data.rlds.loaders.make import make_loader

        return make_loader(dataset, size, rank, world_size, seed)
    return sampling.train_loader(
        torch.utils.data.DataLoader,
        {**built.loader_arguments, "batch_size": size},
        rank=rank,
        world_size=world_size,
        seed=seed,
        batch_size_per_rank=size,
    )


def train_for_all_ranks(job: Job, world_size: int, micro_batches: int = 1) -> dict:
    """The job of `world_size` ranks with `micro_batches` a step; `losses[step]` is the loss over
    the whole batch, which takes one forward.
    """
    use_host(job.host)
    built = build(job.settings)
    streams = RankStreams(built.config.train.seed, world_size, micro_batches)
    loaders = [loader_of(built, rank, world_size, micro_batches) for rank in range(world_size)]
    batches = [EndlessBatches(loader) for loader in loaders]
    losses: list = []
    built.model.set_train()
    while len(losses) < job.steps:
        joined = concatenate([streams.draw(rank, batches[rank]) for rank in range(world_size)])
        streams.begin_step(partial(only_forward, built.model, joined))
        with streams.installed(), job.clipping():
            losses.append(one_step(built.model, joined))
        streams.end_step()
    return result_of(built.model, losses)


def concatenate(parts: list) -> Any:
    """Nested dictionaries of tensors [B, ...] or lists of B strings, joined along B."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return torch.cat(parts)
