"""What all loaders of RLDS data do: hand out a pipeline's batches as torch tensors, and count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from robomimic_ddp.rlds.ahead import Ahead, CudaCopies
from robomimic_ddp.rlds.pipeline import FrameCounters
from robomimic_ddp.rlds.plans import Reading
from robomimic_ddp.rlds.records import damaged_data
from robomimic_ddp.rlds.tf_import import import_tensorflow

if TYPE_CHECKING:
    from robomimic_ddp.rlds.dataset import RLDSDataset

_SETTLING_SECONDS = 10.0


def to_torch(batch: dict[str, Any], pin_memory: bool = False) -> dict[str, Any]:
    """A batch of TensorFlow tensors as torch tensors in the same memory; `language` as str."""
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

    obs: {host key: uint8 [B, To, H, W, 3] for cameras, float32 [B, To, D] for states}; actions:
    float32 [B, To-1+Tp, A], normalised; pad_mask: bool [B, To-1+Tp], False where an edge was
    repeated; language: list of B str; index: int64 [B], the window's number in the data set.

    `frames_decoded`, `frames_delivered` and `frames_prefetched` count camera frames since the
    start, `samples_delivered` windows.
    """

    def __init__(self, dataset: RLDSDataset, rank: int, world_size: int, reading: Reading):
        self.dataset, self.reading = dataset, reading
        self.rank, self.world_size = rank, world_size
        self._counters = FrameCounters()
        self._ahead: Ahead | None = None
        self.frames_delivered = 0
        self.samples_delivered = 0

    def bring_to(self, device: Any) -> None:
        """From here on batches come on the CUDA `device`; elsewhere (None, CPU) as they are."""
        if device is not None and torch.device(device).type == "cuda":
            copies = CudaCopies(torch.device(device), self._as_torch)
            self._ahead = Ahead(copies.send, copies.receive)

    @property
    def batch_size(self) -> int:
        """Windows in a full batch of this rank."""
        return self.reading.batch_size

    @property
    def frames_decoded(self) -> int:
        """Frames decoded so far, counted at the decoder."""
        return int(self._counters.decoded.numpy())

    @property
    def frames_prefetched(self) -> int:
        """Frames in batches that are complete but not yet delivered."""
        return int(self._counters.batched.numpy()) - self.frames_delivered

    def settled_frames(self) -> dict[str, int]:
        """Frames decoded for delivered batches, delivered, and prefetched, once no batch is half
        made.

        What is decoded and never becomes part of a batch counts as decoded.
        """
        deadline = time.monotonic() + _SETTLING_SECONDS
        while True:
            decoded, ahead = self.frames_decoded, self.frames_prefetched
            settled = decoded == self.frames_delivered + ahead
            if settled or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return {
            "frames_decoded": decoded - ahead,
            "frames_delivered": self.frames_delivered,
            "frames_prefetched": ahead,
        }

    def _as_torch(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A batch of the pipeline as tensors, with the embeddings of its instructions."""
        pin = self.reading.pin_memory
        delivered = to_torch(raw, pin)
        for made in self.dataset.embeddings:
            rows = made.of(delivered["language"], self.dataset.shape.frame_stack)
            delivered["obs"][made.key] = rows.pin_memory() if pin else rows
        return delivered

    def _next(self, iterator: Any) -> dict[str, Any]:
        tf = import_tensorflow()
        try:
            batch = self._ahead.next_of(iterator) if self._ahead else next(iterator)
        except tf.errors.OpError as error:
            source = self.dataset.source
            doing = f"rank {self.rank} was loading {source.folder}"
            raise damaged_data(
                error, source.files, doing, source.features, self.dataset.fields
            ) from error
        delivered = batch if self._ahead else self._as_torch(batch)
        self.samples_delivered += len(delivered["language"])
        self.frames_delivered += sum(
            delivered["obs"][key].shape[0] * delivered["obs"][key].shape[1]
            for key in self.dataset.fields.images
        )
        return delivered
