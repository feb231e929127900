"""Instructions as embeddings: each distinct text goes through the language model once, and is kept.

A text is encoded by itself, without padding, so that its numbers depend on nothing but the model
and the text: not on the batch, the ranks, or what was in the cache. DROID's encoding is the sum of
the last hidden states, as its code computes it for one text; robomimic's is CLIP's text embedding,
of texts padded to 25 tokens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp import group, paths
from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.encoder import AUTO, MODELS, Encoder
from robomimic_ddp.rlds.index_cache import write_arrays

__all__ = ["AUTO", "MODELS", "Embeddings", "Encoder", "make_embeddings"]
logger = logging.getLogger(__name__)


class Embeddings:
    """The embeddings of all instructions of a run, under the observation key `key`."""

    def __init__(self, key: str, encoder: Encoder, texts: Sequence[str], rows: np.ndarray) -> None:
        self.key, self._encoder = key, encoder
        self._rows = {text: number for number, text in enumerate(texts)}
        self._table = torch.from_numpy(np.ascontiguousarray(rows, np.float32))
        self._adding = threading.Lock()  # threads that read ahead look up rows meanwhile

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return self._table.shape[1]

    def knows(self, texts: Sequence[str]) -> bool:
        """Whether `of` finds all `texts` without the language model."""
        return all(text in self._rows for text in texts)

    def of(self, texts: Sequence[str], frames: int) -> torch.Tensor:
        """float32 [B, frames, width]: the texts' embeddings, the same for each frame.

        A text that is not known is encoded, which is for the thread that trains: making a model
        draws from the process's random streams, and puts them back where they were.
        """
        distinct, place = np.unique(np.array(texts, object), return_inverse=True)
        with self._adding:
            chosen = [self._row(text) for text in distinct.tolist()]
            rows = self._table[chosen]
        return rows[torch.from_numpy(place), None].repeat(1, frames, 1)

    def _row(self, text: str) -> int:
        """Its place in the table; a text that is new is encoded."""
        if text not in self._rows:
            made = torch.from_numpy(self._encoder.encode(text))[None]
            self._rows[text] = len(self._table)
            self._table = torch.cat([self._table, made])
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
    try:
        encoder: Any = Encoder(model, key, device)
        name = encoder.fingerprint() if group.is_main() else None
    except DataError as error:
        encoder = name = error
    _raise_first(group.gather_objects(encoder if isinstance(encoder, DataError) else None))
    path = cache / f"language-{group.broadcast_object(name)}.npz"
    known = group.broadcast_object(_known(path, texts) if group.is_main() else None)
    missing = [text for text in texts if text not in known]
    if missing:
        if group.is_main():
            logger.info("embedding %d instructions with %s", len(missing), encoder.name)
        with group.without_time_limit() as waiting:
            parts = group.gather_objects(_own_share(encoder, missing), within=waiting)
        _raise_first(parts)
        for part in parts:
            known.update(part)
        if group.is_main():
            _keep(path, known)
    rows = [known[text] for text in texts] or [np.zeros(encoder.width, np.float32)]
    return Embeddings(key, encoder, texts, np.stack(rows))


def _own_share(encoder: Encoder, missing: Sequence[str]) -> dict[str, np.ndarray] | DataError:
    """This rank's part of `missing`, encoded, or what went wrong."""
    from tqdm import tqdm

    own = missing[group.rank() :: group.world_size()]
    hidden = None if group.is_main() else True
    try:
        return {text: encoder.encode(text) for text in tqdm(own, "instructions", disable=hidden)}
    except DataError as error:
        return error
    finally:
        encoder.unload()


def _raise_first(parts: Sequence[Any]) -> None:
    for part in parts:
        if isinstance(part, DataError):
            raise part


def _known(path: Path, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The embeddings of those of `texts` that are in the file."""
    found = _read(path)
    return {text: found[text] for text in texts if text in found}


def _read(path: Path) -> dict[str, np.ndarray]:
    """All embeddings in the file; none where it cannot be read."""
    try:
        with np.load(paths.regular(path), allow_pickle=False) as arrays:
            names, rows = arrays["texts"].tolist(), arrays["rows"]
    except FileNotFoundError:
        return {}
    # A damaged cache is no reason to stop: it is made again. np.load raises many things for one.
    except Exception as error:
        logger.warning("the cached embeddings %s cannot be read (%s): made again", path, error)
        return {}
    return {name.decode(): row for name, row in zip(names, rows)}


def _keep(path: Path, known: dict[str, np.ndarray]) -> None:
    """Adds to what is in the file; several jobs may do so at once, and one of them wins."""
    try:
        everything = {**_read(path), **known}
        names = sorted(everything)
        texts = np.array([name.encode() for name in names])
        write_arrays(path, {"texts": texts, "rows": np.stack([everything[n] for n in names])})
    except OSError as error:
        logger.warning(
            "the embeddings %s cannot be kept (%s): every run will make them again; set "
            "train.data_cache_dir to a writable folder",
            path,
            error,
        )
