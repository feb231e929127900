"""The loaders that replace a host's torch DataLoader on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from robomimic_ddp.data.sampling.nested_loaders import Batches, Wrapped
from robomimic_ddp.data.sampling.pass_order import another_order
from robomimic_ddp.data.sampling.sampler import ShardedSampler


class ShardedLoader(Wrapped):
    """One rank's batches of every pass; each iteration is the next pass.

    Iterates the DataLoader `loader`, which has every argument of the host but sampler, shuffle,
    batch size and drop_last. Other attributes are the DataLoader's (`dataset`, `batch_size`, ...)
    and the sampler's (`order_digest`, `telling_digest`, `each_sample_once`, ...).

    samples_delivered: samples of this rank delivered so far, over all passes, without prefetched
    ones. seed: worker processes are seeded from (seed, rank, pass) and not from the global random
    stream, which a resumed iteration then leaves alone; None: as torch does it.
    """

    wraps = ("loader", "sampler")

    def __init__(
        self,
        make_loader: Callable[..., Any],
        kwargs: dict[str, Any],
        sampler: ShardedSampler,
        batch_size: int,
        drop_last: bool,
        seed: int | None = None,
    ) -> None:
        replaced = {"sampler", "shuffle", "batch_size", "drop_last"}
        loader_kwargs = {name: value for name, value in kwargs.items() if name not in replaced}
        self.samples_delivered = 0
        self.sampler = sampler
        self._host_sampler = kwargs.get("sampler")
        self._seed = seed
        self._begun: int | None = None
        """Samples of all ranks that the current iteration has delivered; None after its end."""
        if seed is not None:
            loader_kwargs["generator"] = torch.Generator()
        self.loader = make_loader(
            **loader_kwargs, sampler=sampler, batch_size=batch_size, drop_last=drop_last
        )

    def __len__(self) -> int:
        """Return the number of batches of this rank in a pass."""
        return len(self.loader)

    def __iter__(self) -> Batches:
        return Batches(self._batches(), self)

    def _batches(self) -> Iterator[Any]:
        if len(self) == 0:
            return  # a rank without samples starts no worker processes
        sampler = self.sampler
        if self._seed is not None:
            words = [self._seed % 2**64, sampler.rank, sampler.next_pass]
            [mixed] = np.random.SeedSequence(words).generate_state(1, np.uint64)
            self.loader.generator.manual_seed(int(mixed))
        begun = sampler.next_offset
        left = len(sampler)  # it matters in validation, where the last batch may not be full
        for batch in self.loader:
            size = min(self.loader.batch_size, left)
            left -= size
            self.samples_delivered += size
            begun += size * sampler.world_size
            self._begun = begun
            yield batch
        self._begun = None

    def drop_iterator(self) -> None:
        """Begin the next pass with the next iterator, whatever was left: the host has dropped its.

        Must be called: an iterator made while StopIteration is handled, as in hosts, is in a
        reference cycle with that exception and stays alive until garbage collection.
        """
        self._begun = None
        if self.sampler.next_offset:
            self.sampler.next_pass += 1
            self.sampler.next_offset = 0

    def position(self) -> dict[str, Any]:
        """Return what `seek` needs to resume here: the same on every rank."""
        number, begun = self.sampler.next_pass, self.sampler.next_offset
        if self._begun is not None:
            number, begun = number - 1, self._begun
        order = self.sampler.order_digest() if begun else None
        return {"kind": "pass", "pass": number, "samples": begun, "order": order}

    def batches_left(self) -> int:
        """Return the batches of this rank left in the current pass; all before it starts."""
        sampler = self.sampler
        begun = sampler.next_offset if self._begun is None else self._begun
        return (sampler.size - begun) // (sampler.world_size * self.loader.batch_size)

    def seek(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Resume at a `position` of a run with any number of ranks; return a line for the user,
        which counts passes from 1, as hosts count epochs. Without one (the run had one rank, and
        the host's sampler) a pass starts which none of `epoch` epochs has drawn from. Raises
        CheckpointError if the order of the pass differs.
        """
        sampler = self.sampler
        if position is None or position.get("kind") != "pass":
            sampler.next_pass, sampler.next_offset = max(epoch, sampler.next_pass), 0
            return f"data: a new pass begins (number {sampler.next_pass + 1})"
        sampler.next_pass, sampler.next_offset = position["pass"], position["samples"]
        saved = position["order"]  # None: of a pass that has not started
        if saved is not None and sampler.next_order_digest() != saved:
            raise another_order(f"pass {position['pass'] + 1}", self._host_sampler)
        split = "" if world_size == sampler.world_size else ", the rest split again over the ranks"
        return (
            f"data: pass {position['pass'] + 1} resumes after {position['samples']} of "
            f"{sampler.size} samples{split}"
        )


class ShardedValidLoader:
    """The validation samples in one order, the same at every epoch (so that losses are comparable),
    split over ranks; nothing is padded or repeated. A rank may have no batch.
    """

    def __init__(
        self, dataset: Any, size: int, host_batch_size: int, of: Callable[[int], Any]
    ) -> None:
        """size: samples of all ranks; of: makes this rank's loader of a number of them."""
        self.dataset, self.size, self.host_batch_size = dataset, size, host_batch_size
        # `of` must not refer to this object: if the garbage collector frees a loader with
        # persistent workers, it waits 5 s for each worker.
        self._of = of
        self._loaders: dict[int, Any] = {}

    def limited(self, num_steps: int | None) -> Any:
        """Return the loader of this rank's share of min(num_steps x configured batch size, size)
        samples; None: of all. The configured batch size is the host's: the same samples at every
        world size.
        """
        wanted = self.size if num_steps is None else num_steps * self.host_batch_size
        total = min(wanted, self.size)
        if total not in self._loaders:
            self._loaders[total] = self._of(total)
        return self._loaders[total]

    def __len__(self) -> int:
        return len(self.limited(None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.limited(None))

    @property
    def samples_delivered(self) -> int:
        """Validation samples of this rank delivered so far, over all epochs."""
        return sum(loader.samples_delivered for loader in self._loaders.values())
