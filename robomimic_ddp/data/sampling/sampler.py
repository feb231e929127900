"""One rank's share of every pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from robomimic_ddp.data.sampling.pass_order import Order

TELLING_INDICES = 10


class ShardedSampler(Sampler):
    """Rank r of w takes items r, r + w, r + 2w, ... of each pass's order, drawn alike on all ranks.

    Each iteration is the next pass, counted from 0, without `set_epoch`. A share is a pure function
    of (seed, pass, world size, rank). Shares are disjoint, and their union is the order
    (`drop_last=False`: lengths differ by at most one, a rank may have none, nothing is padded), or
    the order without its last `size % world` items (`drop_last=True`: lengths are equal). The first
    k items of all ranks are the first k * world items of the order: a global batch is a contiguous
    piece of it.

    next_pass: number of the pass that the next iteration delivers; set it to resume. next_offset:
    items at the start of that pass, over all ranks, to skip: they were delivered before the run was
    resumed, on any number of ranks. current_pass: number of the newest pass, None before the first.
    """

    def __init__(
        self, order: Order, size: int, *, rank: int, world_size: int, drop_last: bool
    ) -> None:
        assert 0 <= rank < world_size and size >= 0
        self.size = int(size)
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.next_pass = 0
        self.next_offset = 0
        self.current_pass: int | None = None
        self._order = order
        self._share: np.ndarray
        self._order_digest: str
        self._offset = 0

    def __len__(self) -> int:
        """Return the number of items of this rank in a whole pass."""
        if self.drop_last:
            return self.size // self.world_size
        return len(range(self.rank, self.size, self.world_size))

    def __iter__(self) -> Iterator[int]:
        # A generator: DataLoader makes iterators that it never starts; which must not take a pass.
        self._begin(self.next_pass)
        for index in self._share:
            yield int(index)

    def digest(self) -> str:
        """Return the hex SHA-256 of this rank's indices of the current pass. Before the first pass
        this draws it, and the next iteration delivers it.
        """
        self._begin_if_none()
        return hashlib.sha256(self._share.tobytes()).hexdigest()

    def telling_digest(self) -> str | None:
        """Return `digest()`, or None where another rank's may be equal by chance: a draw repeats a
        sequence with d distinct indices with a probability of at most d ** -d, from 10 on below
        1e-9.
        """
        digest = self.digest()
        # The beginning suffices for most data, and is cheap for any size.
        telling = any(
            len(np.unique(part)) >= TELLING_INDICES for part in (self._share[:1000], self._share)
        )
        return digest if telling else None

    @property
    def each_sample_once(self) -> bool:
        """Whether this rank's share of the current pass has no sample twice."""
        self._begin_if_none()
        return len(np.unique(self._share)) == len(self._share)

    @property
    def share_of_pass(self) -> np.ndarray:
        """This rank's indices of the current pass, int [N]."""
        self._begin_if_none()
        return self._share

    def order_digest(self) -> str:
        """Return the hex SHA-256 of the order of the current pass: equal on every rank."""
        self._begin_if_none()
        return self._order_digest

    def next_order_digest(self) -> str:
        """Return `order_digest` of the next pass, which this draws."""
        number, offset = self.next_pass, self.next_offset
        self._begin(number)
        self.next_pass, self.next_offset = number, offset
        return self._order_digest

    def _begin_if_none(self) -> None:
        if self.current_pass is None:
            self.next_order_digest()

    def _begin(self, number: int) -> None:
        offset, self.next_offset = self.next_offset, 0
        self.next_pass = number + 1
        if (number, offset) == (self.current_pass, self._offset):
            return  # `digest` has drawn it
        order = self._order(number)
        assert len(order) == self.size, (len(order), self.size)
        self._order_digest = hashlib.sha256(order.tobytes()).hexdigest()
        rest = order[offset:]
        if self.drop_last:
            rest = rest[: len(rest) // self.world_size * self.world_size]
        self._share = rest[self.rank :: self.world_size].copy()
        self.current_pass, self._offset = number, offset
