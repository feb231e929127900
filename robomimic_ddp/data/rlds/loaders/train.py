"""The train loader: one rank's endless stream of batches."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import partial
from typing import Any

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.base import RLDSLoader
from robomimic_ddp.data.rlds.loaders.buffer_memory import window_bytes
from robomimic_ddp.data.rlds.loaders.remote import RemoteBatches
from robomimic_ddp.data.rlds.order.mixture_quota import Quotas
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.rlds.window_table import PassPlans
from robomimic_ddp.errors import DataError

_KIND = "course"


class RLDSTrainLoader(RLDSLoader):
    """One rank's endless stream. Each `iter` continues it, up to the end of the pass, which has the
    same number of full batches on every rank (`len`). Remaining windows start the next pass.
    """

    each_sample_once = True
    """No window is repeated in a pass."""
    _parts = None

    def __init__(
        self,
        dataset: RLDSDataset,
        rank: int,
        world_size: int,
        batching: Batching,
        seed: int,
        in_mixture: bool = False,
    ):
        batching = batching.for_windows(len(dataset) // world_size + 1)
        super().__init__(dataset, rank, world_size, batching)
        # A batch of a mixture has any number of windows, so positions are counted in windows.
        self._segment = Segment(
            world_size, 1 if in_mixture else self.batch_size, batching.shuffle_buffer
        )
        self._require_enough()
        self._seed, self._continued = seed, 0
        self._quotas: tuple[Quotas, int, int] | None = None
        """In a mixture: its quotas, the number of this dataset, and windows before these quotas."""
        self._stream: RemoteBatches | None = None
        self._begin(0, [])

    def _begin(self, first_pass: int, segments: list[tuple[Segment, int]]) -> None:
        """Continue after `segments`: pairs of a segment and the batches each rank took in it."""
        self.close()  # first: its threads use the plans
        self._first_pass = first_pass
        if not segments or segments[-1][0] != self._segment:
            segments = [*segments, (self._segment, 0)]
        *self._segments_before, (_, self._batches) = segments
        table = self.dataset.table
        windows = (table.file, table.per_pass)
        self._schedule = PassSchedule.over(*windows, self._seed, first_pass, segments)
        self._plan_of = PassPlans(table, self._schedule, self.rank)

    def _reader(self) -> RemoteBatches:
        """Return the batches of the pipeline, which begins with the first."""
        if self._stream is None:
            self._stream = self._open(self._sizes())
        return self._stream

    def _start(self) -> tuple[int, int]:
        return self._schedule.position(self.rank, self._batches)

    def follow(self, quotas: Quotas, number: int) -> None:
        """Make batches by the `quotas` of dataset `number` in a mixture; see `next_of`."""
        self._quotas = copy.copy(quotas), number, self._batches
        self.close()

    def _sizes(self) -> Callable[[], Iterator[int]] | None:
        if self._quotas is None:
            return None
        quotas, number, before = self._quotas
        return partial(quotas.sizes, number, self._batches - before)

    def next_of(self, windows: int) -> dict[str, Any]:
        """Return the next `windows` windows, the batch's quota."""
        batch = self._next(self._reader())
        assert len(batch["language"]) == windows, (len(batch["language"]), windows)
        self._batches += windows
        return batch

    @property
    def _part(self) -> int:
        """The part of the schedule that the next batch belongs to."""
        return self._schedule.part_of(self._batches)

    @property
    def pass_number(self) -> int:
        """The pass that the next batch belongs to."""
        return self._schedule.first_pass + self._part

    def position(self) -> dict[str, Any]:
        """Return what `seek` needs, equal on all ranks: four numbers for each change of ranks."""
        segments = [*self._segments_before, (self._segment, self._batches)]
        return {
            "kind": _KIND,
            "data": self.dataset.table.digest(),
            "seed": self._seed,
            "pass": self.pass_number,
            "inside": self._is_inside,
            "first_pass": self._first_pass,
            "legs": [[*astuple(segment), batches] for segment, batches in segments],
        }

    def batches_left(self) -> int:
        """Return, after `seek`, the batches of every rank left in the pass of that position."""
        if self.pass_number != self._continued:
            return 0  # less than a batch, which starts the next pass
        return len(self) - self._delivered_in_pass

    def seek(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Resume at a `position` of a run with any number of ranks; return a line for the user.
        With the same ranks, batch size and buffer at the exact window; else the rest of the pass is
        split again. Only records with windows in the shuffle buffer are read again.
        """
        if position is None or position.get("kind") != _KIND:
            return "data: the first pass begins"
        number = self._continued = position["pass"]
        if (position["data"], position["seed"]) != (self.dataset.table.digest(), self._seed):
            self._begin(number, [])
            return (
                f"data: pass {number + 1} starts again, since the dataset, the choice of its "
                "windows or the seed has changed"
            )
        segments = [(Segment(*numbers), batches) for *numbers, batches in position["legs"]]
        self._begin(position["first_pass"], segments)
        if segments[-1][0] == self._segment:
            return f"data: pass {number + 1} resumes after {self._delivered_in_pass} {self._unit}"
        left = self._schedule.rest
        assert left is not None
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return (
            f"data: ranks, batch or shuffle buffer have changed; the {left.windows} windows that "
            f"pass {number + 1} has not delivered are split again over {ranks}"
        )

    @property
    def _unit(self) -> str:
        return "batches" if self._quotas is None else "windows of a rank"

    @property
    def _delivered_in_pass(self) -> int:
        return self._batches - self._schedule.batches_before(self._part)

    @property
    def _is_inside(self) -> bool:
        """Whether a part of the current pass was delivered, in this segment or before."""
        rest = self._schedule.rest if self._part == 0 else None
        begun = rest is not None and rest.windows < len(self.dataset)
        return begun or self._delivered_in_pass > 0

    def _require_enough(self) -> None:
        least = self._segment.batch_size
        needed = least * self.world_size
        if len(self.dataset) < needed:
            raise DataError(
                f"{self.dataset.source.folder} has {len(self.dataset)} windows in a pass, but a "
                f"step needs {needed} ({least} on each of {self.world_size} ranks): some rank "
                "would have no batch. Use a smaller batch, fewer ranks, or more data "
                "(train.success_only, train.skip_unlabeled and train.subsample_length leave some "
                "out)."
            ).on_all_ranks()

    def __len__(self) -> int:
        """Return every rank's full batches in the pass, or in its rest since a new segment."""
        return self._schedule.batches_in(self._part)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        this_pass = self.pass_number
        while self.pass_number == this_pass:
            batch = self._next(self._reader())
            self._batches += 1
            yield batch

    def order_digest(self) -> str:
        """Return a hex digest of the order of all ranks in the current pass, equal on all."""
        row = self._schedule.row(self._part)
        digest = hashlib.sha256(repr((self.position()["legs"], self._seed)).encode())
        for column in row.columns():
            digest.update(column.tobytes())
        return digest.hexdigest()

    def digest(self) -> str:
        """Return a hex digest of what this rank reads in the current pass."""
        return self._plan_of(self._part).digest()

    telling_digest = digest
    """Shards are disjoint, so two ranks' never agree."""

    def shuffle_buffers(self) -> list[tuple[int, float]]:
        """Return the windows in this rank's shuffle buffer, and the expected bytes of a window."""
        return [(self.batching.shuffle_buffer, window_bytes(self.dataset))]

    def close(self) -> None:
        """Stop prefetching and free the buffers."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
