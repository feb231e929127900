"""Base of the RLDS loaders: delivers a pipeline's batches as torch tensors, with counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.prefetch import Prefetcher, moved
from robomimic_ddp.data.rlds.loaders.remote import (
    Delivered,
    RemoteBatches,
    SharedCounters,
    reader_of_rank,
)
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.rlds.pipeline.shared import OBS
from robomimic_ddp.errors import DataError

_SETTLING_SECONDS = 10.0


def to_torch(batch: Delivered, pin_memory: bool = False) -> dict[str, Any]:
    """Return a batch as torch tensors that share its memory."""
    delivered: dict[str, Any] = {"obs": {}}
    for name, array in batch.arrays.items():
        tensor = torch.from_numpy(array)
        tensor = tensor.pin_memory() if pin_memory else tensor
        into = delivered["obs"] if name.startswith(OBS) else delivered
        into[name.removeprefix(OBS)] = tensor
    # The index, whose texts have embeddings, has them without NUL at the end.
    texts = {text: text.rstrip(b"\0").decode("utf-8", "replace") for text in {*batch.language}}
    delivered["language"] = [texts[text] for text in batch.language]
    return delivered


class RLDSLoader:
    """Batches of one rank. Each is a dict:

    obs: {host key: uint8 [B, To, H, W, 3] for cameras, float32 [B, To, D] for states}; actions:
    float32 [B, To-1+Tp, A], normalised; pad_mask: bool [B, To-1+Tp], False where an edge was
    repeated; language: list of B str; index: int64 [B], the window's number in the dataset.

    `frames_decoded`, `frames_delivered` and `frames_prefetched` count camera frames since the
    start, `samples_delivered` windows.
    """

    def __init__(self, dataset: RLDSDataset, rank: int, world_size: int, batching: Batching):
        self.dataset, self.batching = dataset, batching
        self.rank, self.world_size = rank, world_size
        reader_of_rank()  # it starts while nets are built
        self._counters = SharedCounters()
        self._ahead: Prefetcher | None = None
        self._device: torch.device | None = None
        self.frames_delivered = 0
        self.samples_delivered = 0

    def bring_to(self, device: Any) -> None:
        """Deliver all later batches on the CUDA `device`; None or CPU changes nothing."""
        if device is not None and torch.device(device).type == "cuda":
            device = torch.device(device)
            if device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            self._ahead, self._device = Prefetcher(self._as_torch, device), device

    @property
    def batch_size(self) -> int:
        """Windows in a full batch of this rank."""
        return self.batching.batch_size

    @property
    def frames_decoded(self) -> int:
        """Frames decoded so far, counted at the decoder."""
        return self._counters.decoded

    @property
    def frames_prefetched(self) -> int:
        """Frames in batches that are complete but not yet delivered."""
        return self._counters.batched - self.frames_delivered

    def settled_frames(self) -> dict[str, int]:
        """Wait until no batch is being made; return frames decoded, delivered and prefetched.

        Frames that are decoded for no batch count as decoded.
        """
        deadline = time.monotonic() + _SETTLING_SECONDS
        while True:
            decoded, prefetched = self.frames_decoded, self.frames_prefetched
            settled = decoded == self.frames_delivered + prefetched
            if settled or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return {
            "frames_decoded": decoded - prefetched,
            "frames_delivered": self.frames_delivered,
            "frames_prefetched": prefetched,
        }

    def _as_torch(self, raw: Delivered) -> dict[str, Any]:
        """Return a batch as tensors, with embeddings of its instructions. Thread-safe."""
        batch = to_torch(raw, self.batching.pin_memory)
        for table in self.dataset.embeddings:
            rows = table.of(batch["language"], self.dataset.shape.frame_stack)
            batch["obs"][table.key] = rows.pin_memory() if self.batching.pin_memory else rows
        return batch

    def _next(self, stream: RemoteBatches) -> dict[str, Any]:
        """Return the next batch, counted. Raises DataError for a record that cannot be read."""
        try:
            if self._ahead:
                batch = self._ahead.next_of(stream)
            else:
                batch = self._as_torch(next(stream))
        except RecordError as error:
            raise DataError(
                f"reading failed while rank {self.rank} was loading {self.dataset.source.folder}.\n"
                f"{_describe_fault(error, self.dataset)} ({error}). Copy or prepare that file "
                "again. To train without it: `robomimic-ddp prepare-data --skip-corrupt` writes "
                "the dataset without episodes that cannot be read or decoded; or, where the record "
                "itself is damaged, delete the dataset's index from train.data_cache_dir and set "
                "ddp.skip_corrupt=true."
            ) from error
        if self._device is not None:
            batch = moved(batch, self._device)
        self.samples_delivered += len(batch["language"])
        self.frames_delivered += sum(
            batch["obs"][key].shape[0] * batch["obs"][key].shape[1]
            for key in self.dataset.fields.images
        )
        return batch

    def _open(self, sizes: Callable[[], Iterator[int]] | None = None) -> RemoteBatches:
        """Return the batches from the current position on (see `engine.Batches`)."""
        arguments = (self.dataset.settings, self._plan_of, self._parts, self.batching)
        return RemoteBatches((*arguments, self._start(), sizes), self._counters)

    _parts: int | None
    """Number of parts; None: endless."""
    _plan_of: Callable[[int], PassPlan]
    """What this rank reads in a part. Can be pickled."""

    def _start(self) -> tuple[int, int]:
        """Return the part of the next batch, and how many windows of it were delivered."""
        raise NotImplementedError


def _describe_fault(error: RecordError, dataset: RLDSDataset) -> str:
    """Return what cannot be read: the episode of `dataset`, or a frame in it."""
    row, step = dataset.episode_of(error.window)
    episode = dataset.describe_episode(row)
    if error.frame is None:
        return f"{episode}: its record cannot be used"
    key, number = error.frame
    step = max(0, step - (dataset.shape.frame_stack - 1) + number)
    return f"{episode}, step {step}, `{dataset.fields.images[key]}` cannot be decoded"
