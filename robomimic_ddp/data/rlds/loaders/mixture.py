"""The loaders of a mixture: join the batches of its datasets' loaders."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from robomimic_ddp.data.rlds.mixture_dataset import RLDSMixture
from robomimic_ddp.data.rlds.order.mixture_quota import Quotas

_KIND = "mixture"
_SUMS = ("frames_decoded", "frames_delivered", "frames_prefetched", "samples_delivered")
"""Counters that a mixture sums over its members."""


class _MixtureLoader:
    """Members, one loader per dataset, and the sums of their counters."""

    def __init__(
        self,
        dataset: RLDSMixture,
        batch_size: int,
        rank: int,
        world_size: int,
        members: list[Any],
        pin_memory: bool = False,
    ) -> None:
        self.dataset, self.batch_size, self._pin_memory = dataset, batch_size, pin_memory
        self.rank, self.world_size, self.members = rank, world_size, members

    def __getattr__(self, name: str) -> Any:
        if name not in _SUMS:
            raise AttributeError(name)
        return sum(getattr(member, name) for member in self.members)

    def settled_frames(self) -> dict[str, int]:
        """See RLDSLoader.settled_frames."""
        counts = [member.settled_frames() for member in self.members]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    def _numbered(self, number: int, batch: dict[str, Any]) -> dict[str, Any]:
        batch["index"] += self.dataset.first_index[number]
        return batch


class MixtureTrainLoader(_MixtureLoader):
    """One rank's endless stream, with the windows of each dataset by `Quotas`, so that ranks are
    always in the same pass of each. `len` and an `iter` cover as many windows as the mixture has.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._batches, self._left = 0, len(self)
        self._share_out([0] * len(self.members))

    def _share_out(self, before: list[int]) -> None:
        """Continue the quotas after `before` windows of each dataset."""
        self._quotas = Quotas(self.dataset.weights, self.batch_size, before)
        for number, member in enumerate(self.members):
            member.follow(self._quotas, number)

    def __len__(self) -> int:
        return max(1, len(self.dataset) // (self.world_size * self.batch_size))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        end = (self._batches // len(self) + 1) * len(self)
        while self._batches < end:
            quota = self._quotas.next()
            parts = [
                self._numbered(number, member.next_of(count))
                for number, (member, count) in enumerate(zip(self.members, quota))
                if count
            ]
            self._batches += 1
            yield _joined(parts, self._pin_memory)

    def position(self) -> dict[str, Any]:
        """Return what `seek` needs: the same on every rank."""
        return {
            "kind": _KIND,
            "batches": self._batches,
            "batch_size": self.batch_size,
            "weights": self.dataset.weights,
            "given": self._quotas.before,
            "members": {
                _name(number, member): member.position()
                for number, member in enumerate(self.members)
            },
        }

    def batches_left(self) -> int:
        """Return, after `seek`, the batches up to the end of that position's `iter`."""
        return self._left

    def seek(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Resume each dataset at its `position`, or start it. Return lines for the user."""
        if position is None or position.get("kind") != _KIND:
            return "data: the first pass of each dataset begins"
        lines = []
        for number, member in enumerate(self.members):
            name = _name(number, member)
            line = member.seek(position["members"].get(name), world_size, epoch)
            lines.append(line.replace("data:", f"data: {name.partition(' ')[2]}:", 1))
        before = max(1, len(self.dataset) // (world_size * position["batch_size"]))
        passed, within = divmod(position["batches"], before)
        same = (self.batch_size, self.dataset.weights, self.world_size)
        if same == (position["batch_size"], position["weights"], world_size):
            self._batches = position["batches"]
            self._share_out(position["given"])
        else:
            samples = within * position["batch_size"] * world_size
            within = min(len(self), samples // (self.batch_size * self.world_size))
            self._batches = passed * len(self) + within
            self._share_out([0] * len(self.members))
        self._left = len(self) - within
        return "\n".join(lines)

    def order_digest(self) -> str:
        """Return a hex digest of the order of all ranks: equal on every rank."""
        total = hashlib.sha256(repr((self.dataset.weights, self._batches)).encode())
        for member in self.members:
            total.update(member.order_digest().encode())
        return total.hexdigest()

    def digest(self) -> str:
        """Return a hex digest of what this rank reads in the current passes."""
        digests = "".join(member.digest() for member in self.members)
        return hashlib.sha256(digests.encode()).hexdigest()

    telling_digest = digest
    """Shards are disjoint, so two ranks' never agree."""

    def shuffle_buffers(self) -> list[tuple[int, float]]:
        """See RLDSTrainLoader.shuffle_buffers; one for each dataset."""
        return [buffer for member in self.members for buffer in member.shuffle_buffers()]

    def close(self) -> None:
        """Stop prefetching and free the buffers."""
        for member in self.members:
            member.close()


class MixtureValidLoader(_MixtureLoader):
    """One rank's share of the validation windows of all datasets, one dataset after the other."""

    def __len__(self) -> int:
        """Return the batches of this rank; each dataset's last one may be short."""
        return sum(len(member) for member in self.members)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, member in enumerate(self.members):
            for batch in member:
                yield self._numbered(number, batch)


def _name(number: int, member: Any) -> str:
    """Return a unique name: a dataset may be in a mixture twice."""
    return f"{number} {member.dataset.source.name}"


def _joined(parts: list[dict[str, Any]], pin_memory: bool) -> dict[str, Any]:
    """Concatenate batches."""
    if len(parts) == 1 and not pin_memory:
        return parts[0]

    def join(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: join([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], torch.Tensor):
            whole = torch.cat(values)
            return whole.pin_memory() if pin_memory and not whole.is_cuda else whole
        return list(itertools.chain.from_iterable(values))

    return join(parts)
