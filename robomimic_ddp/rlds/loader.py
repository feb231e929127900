"""The loaders that the host iterates over: an endless train stream per rank, and a validation pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

import torch

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.partition import batches_in_pass
from robomimic_ddp.rlds.pipeline import ENDLESS, FrameCounters, build, usable_cores
from robomimic_ddp.rlds.records import damaged_data
from robomimic_ddp.rlds.tf_import import import_tensorflow

if TYPE_CHECKING:
    from robomimic_ddp.rlds.host import RLDSDataset

PREFETCHED_BATCHES = 2


def to_torch(batch: dict[str, Any], pin_memory: bool = False) -> dict[str, Any]:
    """A batch of TensorFlow tensors as torch tensors that share its memory; `language` as a list of str."""
    tf = import_tensorflow()

    def convert(tensor: Any) -> torch.Tensor:
        shared = torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))
        return shared.pin_memory() if pin_memory else shared

    delivered = {key: convert(batch[key]) for key in ("actions", "pad_mask", "index")}
    delivered["obs"] = {key: convert(value) for key, value in batch["obs"].items()}
    delivered["language"] = [text.decode() for text in batch["language"].numpy().tolist()]
    return delivered


class RLDSLoader:
    """Batches of one rank. Each is a dict:

    obs: {host key: uint8 [B, To, H, W, 3] for cameras, float32 [B, To, D] for states}; actions: float32
    [B, To-1+Tp, A], normalised; pad_mask: bool [B, To-1+Tp], False where an edge was repeated; language: list of
    B str; index: int64 [B], the window's number in the data set.

    `frames_decoded`, `frames_delivered` and `frames_prefetched` count camera frames since the start.
    """

    def __init__(self, dataset: RLDSDataset, batch_size: int, rank: int, world_size: int, pin_memory: bool = False):
        self.dataset, self.batch_size = dataset, batch_size
        self.rank, self.world_size = rank, world_size
        self._pin_memory = pin_memory
        self._counters = FrameCounters()
        self.frames_delivered = 0

    @property
    def frames_decoded(self) -> int:
        """Frames decoded so far, counted at the decoder."""
        return int(self._counters.decoded.numpy())

    @property
    def frames_prefetched(self) -> int:
        """Frames in batches that are complete but not yet delivered."""
        return int(self._counters.batched.numpy()) - self.frames_delivered

    def _next(self, iterator: Any) -> dict[str, Any]:
        tf = import_tensorflow()
        try:
            batch = next(iterator)
        except tf.errors.OpError as error:
            source = self.dataset.source
            doing = f"rank {self.rank} was loading {source.folder}"
            raise damaged_data(error, source.files, doing, source.features, self.dataset.fields) from error
        delivered = to_torch(batch, self._pin_memory)
        self.frames_delivered += sum(
            delivered["obs"][key].shape[0] * delivered["obs"][key].shape[1] for key in self.dataset.fields.images)
        return delivered


class RLDSTrainLoader(RLDSLoader):
    """One rank's endless stream, in passes. `iter` continues it and ends with the pass, so nothing is ever lost.

    Every rank takes the same number of full batches in a pass (`len`); windows left over open the next pass.
    """

    def __init__(
        self, dataset: RLDSDataset, batch_size: int, rank: int, world_size: int, seed: int,
        threads: int, prefetch: int = PREFETCHED_BATCHES, pin_memory: bool = False,
    ):
        super().__init__(dataset, batch_size, rank, world_size, pin_memory)
        needed = batch_size * world_size
        if len(dataset) < needed:
            raise DataError(
                f"{dataset.source.folder} gives {len(dataset)} windows to a pass, a step needs {needed} ({batch_size} "
                f"on each of {world_size} ranks): some rank would have no batch. Use a smaller batch, fewer ranks, "
                "or more data (train.success_only, train.skip_unlabeled and train.subsample_length take some away).")
        self.pass_number = 0
        """The pass that the next batch belongs to."""
        self._delivered_in_pass = 0
        longest_shard = len(dataset) // world_size + 1
        buffer = min(max(1, dataset.options.shuffle_buffer_size // world_size), longest_shard)
        self._dataset = build(
            dataset.recipe, lambda number: dataset.pass_plan(seed, number, rank, world_size), ENDLESS,
            self._counters, batch_size, buffer, True, threads, prefetch)
        self._iterator: Any = None

    def __len__(self) -> int:
        """Full batches of every rank in the current pass."""
        return batches_in_pass(len(self.dataset), self.pass_number, self.batch_size, self.world_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        this_pass = self.pass_number
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        while self.pass_number == this_pass:
            batch = self._next(self._iterator)
            self._delivered_in_pass += 1
            if self._delivered_in_pass == len(self):
                self.pass_number, self._delivered_in_pass = this_pass + 1, 0
            yield batch

    def close(self) -> None:
        """Stops reading ahead and frees the buffers; the stream cannot be continued."""
        self._iterator = self._dataset = None


class RLDSValidLoader(RLDSLoader):
    """One rank's part of the validation windows, the same ones at every `iter`; the last batch may be short.

    Over ranks every window comes once: all of them, or `most_windows` spread evenly over the episodes. A rank may
    have none.
    """

    def __init__(
        self, dataset: RLDSDataset, batch_size: int, rank: int, world_size: int, threads: int,
        most_windows: int | None = None, prefetch: int = PREFETCHED_BATCHES, pin_memory: bool = False,
    ):
        super().__init__(dataset, batch_size, rank, world_size, pin_memory)
        plan = dataset.valid_plan(rank, world_size, most_windows)
        self.windows = int((plan.stop - plan.start).sum())
        self._dataset = build(
            dataset.recipe, lambda _: plan, 1, self._counters, batch_size, 0, False, threads, prefetch)

    def __len__(self) -> int:
        """Batches of this rank, the short last one included."""
        return -(-self.windows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        iterator = iter(self._dataset)
        for _ in range(len(self)):
            yield self._next(iterator)


def decoding_threads(wanted: int | None, ranks_on_node: int) -> int:
    """Threads of this rank's pipeline: its share of the node's cores, or `wanted` where that is less."""
    share = max(1, usable_cores() // max(1, ranks_on_node))
    return min(wanted, share) if wanted else share


def make_loader(
    dataset: RLDSDataset, batch_size: int, rank: int, world_size: int, seed: int,
    ranks_on_node: int | None = None, pin_memory: bool = False, prefetch: int = PREFETCHED_BATCHES,
) -> RLDSTrainLoader:
    """The train loader of `rank`, `batch_size` windows a batch; `seed` must be equal on all ranks.

    `ranks_on_node` (world_size where None) shares the machine's cores. Raises DataError. Not collective.
    """
    threads = decoding_threads(dataset.options.num_parallel_calls, ranks_on_node or world_size)
    return RLDSTrainLoader(dataset, batch_size, rank, world_size, seed, threads, prefetch, pin_memory)


def make_valid_loader(
    dataset: RLDSDataset, batch_size: int, rank: int, world_size: int, steps: int | None = None,
    ranks_on_node: int | None = None, pin_memory: bool = False,
) -> RLDSValidLoader:
    """The validation loader of `rank`: every window once over ranks, or `steps * batch_size` of them. Not collective."""
    threads = decoding_threads(dataset.options.num_parallel_calls, ranks_on_node or world_size)
    most = None if steps is None else steps * batch_size
    return RLDSValidLoader(dataset, batch_size, rank, world_size, threads, most, pin_memory=pin_memory)
