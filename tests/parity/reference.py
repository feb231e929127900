"""One process that trains for all ranks: the batch is the concatenation of the ranks' batches.

Every random number comes from a rank's own stream: for each rank the whole state of torch's
generator is kept, and whatever is drawn is the concatenation of what the ranks would draw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import rng
from tests.parity.training import Job, build, one_step, only_forward, result_of, use_host

RANDOM = frozenset(
    ("randn", "rand", "randint", "randn_like", "normal", "multinomial", "dropout")
    + ("normal_", "uniform_", "exponential_", "bernoulli_", "gumbel_softmax")
)
"""Names of torch's functions that draw, as the host and torch's distributions call them. What one
of them calls is not seen.
"""


class RankStreams:
    """torch's default generator, one state for each rank; `draw` switches to it and back.

    `batch`: samples of all ranks together. The first dimension of a draw that it divides is that of
    the batch; it may have several rows of each sample, one after the other.
    `micro_batches`: a rank draws for one after the other; see `begin_step`.
    """

    def __init__(self, seed: int, world_size: int, batch: int, micro_batches: int = 1) -> None:
        start = torch.get_rng_state()
        self.of_ranks, self.batch, self.micro_batches = [], batch, micro_batches
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

    @contextmanager
    def installed(self, drawn: list | None = None) -> Any:
        """All that torch draws inside takes each rank's rows from that rank's stream. `drawn`: gets
        what the first rank calls.
        """
        before = torch.get_rng_state()
        with JoinedDraws(self, [] if drawn is None else drawn):
            yield
        assert torch.equal(torch.get_rng_state(), before), "something was drawn for no rank"


class JoinedDraws(TorchFunctionMode):
    """Each call of a function in RANDOM is made once for each rank, with its part of every tensor
    and shape among the arguments and with its stream; the results are joined.
    """

    def __init__(self, streams: RankStreams, drawn: list) -> None:
        super().__init__()
        self.streams, self.drawn = streams, drawn

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") not in RANDOM:
            return function(*args, **kwargs)
        if function.__name__ in ("randn", "rand") and args and isinstance(args[0], int):
            args = (args,)
        ranks, parts = len(self.streams.states), []
        for rank in range(ranks):
            own = [self.part(value, rank) for value in args]
            named = {name: self.part(value, rank) for name, value in kwargs.items()}
            if function.__name__.endswith("_"):
                own[0] = torch.empty_like(own[0])
            parts.append(self.streams.draw(rank, partial(function, *own, **named)))
            if rank == 0:
                self.drawn.append(partial(function, *own, **named))
        shaped = [value for value in (*args, *kwargs.values()) if shape_of(value) is not None]
        joined = torch.cat(parts, self.dimension(shape_of(shaped[0])))
        return args[0].copy_(joined) if function.__name__.endswith("_") else joined

    def dimension(self, shape: tuple) -> int:
        """The dimension of the batch."""
        found = [index for index, size in enumerate(shape) if size % self.streams.batch == 0]
        assert found, f"no dimension of {tuple(shape)} is one of {self.streams.batch} samples"
        return found[0]

    def part(self, value: Any, rank: int) -> Any:
        """Rank's part of a tensor or of a shape; else `value`."""
        shape = shape_of(value)
        if shape is None:
            return value
        dimension, ranks = self.dimension(shape), len(self.streams.states)
        if isinstance(value, torch.Tensor):
            return value.chunk(ranks, dimension)[rank].contiguous()
        return (*shape[:dimension], shape[dimension] // ranks, *shape[dimension + 1 :])


def shape_of(value: Any) -> tuple | None:
    """Of a tensor, or of what is a shape itself."""
    if isinstance(value, torch.Tensor):
        return value.shape
    return value if isinstance(value, (tuple, list)) else None


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
    with job.changes():
        built = build(job.settings)
        seed, batch = built.config.train.seed, built.config.train.batch_size
        streams = RankStreams(seed, world_size, batch * world_size * micro_batches, micro_batches)
        loaders = [loader_of(built, rank, world_size, micro_batches) for rank in range(world_size)]
        batches = [EndlessBatches(loader) for loader in loaders]
        losses: list = []
        built.model.set_train()
        while len(losses) < job.steps:
            joined = concatenate([streams.draw(rank, batches[rank]) for rank in range(world_size)])
            streams.begin_step(partial(only_forward, built.model, joined))
            with streams.installed():
                losses.append(one_step(built.model, joined, job.epoch(len(losses))))
            streams.end_step()
        return result_of(built, losses)


def concatenate(parts: list) -> Any:
    """Nested dictionaries of tensors [B, ...] or lists of B strings, joined along B."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return torch.cat(parts)
