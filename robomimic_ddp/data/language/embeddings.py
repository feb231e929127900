"""Instructions as embeddings: each distinct text goes through the language model once, and is kept.

A text is encoded by itself, without padding, so that its numbers depend on nothing but the model
and the text: not on the batch, the ranks, or what was in the cache. DROID's encoding is the sum of
the last hidden states, as its code computes it for one text; robomimic's is CLIP's text embedding,
of texts padded to 25 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp.data import array_cache
from robomimic_ddp.data.language.encoder import AUTO, MODELS, Encoder
from robomimic_ddp.distributed import group

__all__ = ["AUTO", "MODELS", "Embeddings", "Encoder", "make_embeddings"]
logger = logging.getLogger(__name__)


class Embeddings:
    """The embeddings of all instructions of a run, under the observation key `key`."""

    def __init__(self, key: str, encoder: Encoder, known: Mapping[str, np.ndarray]) -> None:
        self.key, self._encoder = key, encoder
        self._rows = {text: torch.tensor(row, dtype=torch.float32) for text, row in known.items()}

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return self._encoder.width

    def knows(self, texts: Sequence[str]) -> bool:
        """Whether `of` finds all `texts` without the language model."""
        return all(text in self._rows for text in texts)

    def of(self, texts: Sequence[str], frames: int) -> torch.Tensor:
        """float32 [B, frames, width]: the texts' embeddings, the same for each frame.

        A text that is not known is encoded, which is for the thread that trains: making a model
        draws from the process's random streams, and puts them back where they were.
        """
        distinct, place = np.unique(np.array(texts, object), return_inverse=True)
        rows = torch.stack([self._row(text) for text in distinct.tolist()])
        return rows[torch.from_numpy(place), None].repeat(1, frames, 1)

    def _row(self, text: str) -> torch.Tensor:
        """float32 [width]; a text that is new is encoded."""
        if text not in self._rows:
            self._rows[text] = torch.from_numpy(self._encoder.encode(text))
        return self._rows[text]


def make_embeddings(
    key: str, model: str, texts: Sequence[str], cache: Path, device: str = "cpu"
) -> Embeddings:
    """Collective: the embeddings of `texts`, which are equal on all ranks, by the `Encoder` of
    `model` and `key`.

    What the main rank has in the folder `cache` is not computed; each rank computes its share of
    the rest, and gets all of it. Raises DataError, that of the first rank that has one, everywhere.
    """
    texts = sorted(set(texts))
    encoder: Any = None

    def opened() -> str:
        nonlocal encoder
        encoder = Encoder(model, key, device)
        return encoder.fingerprint() if group.is_main() else ""

    path = cache / f"language-{array_cache.made_together(opened)[0]}.npz"
    cached = _read(path) if group.is_main() else {}
    known = group.broadcast_object({text: cached[text] for text in texts if text in cached})
    missing = [text for text in texts if text not in known]
    if missing:
        if group.is_main():
            logger.info("embedding %d instructions with %s", len(missing), encoder.name)
        for part in array_cache.made_together(lambda: _own_share(encoder, missing)):
            known.update(part)
        if group.is_main():
            _keep(path, known)
    return Embeddings(key, encoder, {text: known[text] for text in texts})


def _own_share(encoder: Encoder, missing: Sequence[str]) -> dict[str, np.ndarray]:
    """This rank's part of `missing`, encoded."""
    from tqdm import tqdm

    own = missing[group.rank() :: group.world_size()]
    hidden = None if group.is_main() else True
    try:
        return {text: encoder.encode(text) for text in tqdm(own, "instructions", disable=hidden)}
    finally:
        encoder.unload()


def _read(path: Path) -> dict[str, np.ndarray]:
    """All embeddings in the file, by their texts; none where it cannot be read."""

    def by_text(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.decode(): row for name, row in zip(arrays["texts"].tolist(), arrays["rows"])}

    return array_cache.read(path, "embeddings", by_text) or {}


def _keep(path: Path, known: dict[str, np.ndarray]) -> None:
    """Adds to what is in the file; of several jobs that do so at once, one wins."""
    everything = {**_read(path), **known}
    names = sorted(everything)
    texts = np.array([name.encode() for name in names])
    rows = np.stack([everything[name] for name in names])
    array_cache.keep(path, "embeddings", {"texts": texts, "rows": rows})
