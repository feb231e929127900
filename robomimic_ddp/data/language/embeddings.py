"""Embeddings of instructions: each distinct text goes through the language model once, and is
cached.

A text is encoded alone, so that its embedding depends only on the model and the text: DROID's is
the sum of the last hidden states, robomimic's CLIP's text embedding, padded to 25 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp.data import array_cache
from robomimic_ddp.data.language.encoder import Encoder
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError

logger = logging.getLogger(__name__)


class Embeddings:
    """The embeddings of all instructions of a run, under the observation key `key`; of `width`."""

    def __init__(self, key: str, width: int, known: Mapping[str, np.ndarray]) -> None:
        self.key, self.width = key, width
        self._rows = {text: torch.tensor(row, dtype=torch.float32) for text, row in known.items()}

    def of(self, texts: Sequence[str], frames: int) -> torch.Tensor:
        """Return float32 [B, frames, width], the same for each frame. Raises DataError for a text
        that the dataset's index lacks.
        """
        distinct, index = np.unique(texts, return_inverse=True)
        try:
            rows = torch.stack([self._rows[text] for text in distinct.tolist()])
        except KeyError as error:
            raise DataError(
                f"the instruction {error.args[0]!r} is not in the dataset's index: the records "
                "have changed since it was made. Delete the dataset's index from "
                "train.data_cache_dir: the next run makes it again."
            ) from error
        return rows[torch.from_numpy(index), None].repeat(1, frames, 1)


def make_embeddings(
    key: str, model: str, texts: Sequence[str], cache: Path, device: str = "cpu"
) -> Embeddings:
    """Collective: return the embeddings of `texts`, which are equal on all ranks. Each rank
    computes its share of those that the main rank's folder `cache` lacks, and gets all. Raises the
    DataError of the first rank that has one on every rank.
    """
    texts = sorted(set(texts))
    encoder: Any

    def opened() -> str:
        nonlocal encoder
        encoder = Encoder(model, key, device)
        return encoder.fingerprint() if group.is_main() else ""

    path = cache / f"language-{array_cache.compute_together(opened)[0]}.npz"
    cached = _read(path) if group.is_main() else {}
    known = group.broadcast_object({text: cached[text] for text in texts if text in cached})
    missing = [text for text in texts if text not in known]
    if missing:
        if group.is_main():
            logger.info("embedding %d instructions with %s", len(missing), encoder.name)
        for share in array_cache.compute_together(lambda: _encode_share(encoder, missing)):
            known.update(share)
        if group.is_main():
            _store(path, known)
    return Embeddings(key, encoder.width, {text: known[text] for text in texts})


def _encode_share(encoder: Encoder, missing: Sequence[str]) -> dict[str, np.ndarray]:
    """Encode this rank's share of `missing`."""
    from tqdm import tqdm

    texts = missing[group.rank() :: group.world_size()]
    hidden = None if group.is_main() else True
    try:
        return {text: encoder.encode(text) for text in tqdm(texts, "instructions", disable=hidden)}
    finally:
        encoder.unload()


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return text -> embedding of the file; empty if it cannot be read."""

    def by_text(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.decode(): row for name, row in zip(arrays["texts"].tolist(), arrays["rows"])}

    return array_cache.read(path, "embeddings", by_text) or {}


def _store(path: Path, known: dict[str, np.ndarray]) -> None:
    """Add to the file; if several jobs do so at once, one wins."""
    everything = {**_read(path), **known}
    names = sorted(everything)
    texts = np.array([name.encode() for name in names])
    rows = np.stack([everything[name] for name in names])
    array_cache.store(path, "embeddings", {"texts": texts, "rows": rows})
