"""Instructions as embeddings: each distinct text goes through the language model once, and is kept.

A text is encoded by itself, without padding, so that its numbers depend on nothing but the model
and the text: not on the batch, the ranks, or what was in the cache. DROID's encoding is the sum of
the last hidden states, as its code computes it for one text; robomimic's is CLIP's text embedding,
of texts padded to 25 tokens.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp import group
from robomimic_ddp.errors import DataError
from robomimic_ddp.language import LanguageModel, unavailable
from robomimic_ddp.random_streams import kept

logger = logging.getLogger(__name__)
AUTO = "auto"
"""Of the option: the model of the key."""
MODELS = {
    "lang_emb": "openai/clip-vit-large-patch14",
    "lang_fixed/language_distilbert": "distilbert-base-uncased",
}
"""Observation key of an embedding -> the model that hosts with this key use."""
CLIP_TOKENS = 25
_VERSION = 1
"""Raised when the way from text to numbers changes."""
_WHOLE_BYTES, _BLOCKS, _BLOCK_BYTES = 2**24, 16, 2**16


class Encoder:
    """The model `name` (a folder, or a name for transformers; AUTO: the one that hosts use for the
    observation key `key`) on `device`, loaded when a text comes that must be encoded. Raises
    DataError where it cannot be.
    """

    def __init__(self, name: str, key: str, device: str = "cpu") -> None:
        self.name = MODELS[key] if name == AUTO else os.path.expanduser(name)
        self.device = device
        self._config = self._get("AutoConfig")
        self._clip = str(getattr(self._config, "model_type", "")).startswith("clip")
        self._tokenizer: Any = None
        self.unload()

    @property
    def _class(self) -> str:
        return "CLIPTextModelWithProjection" if self._clip else "AutoModel"

    def _get(self, kind: str) -> Any:
        try:
            import transformers

            return getattr(transformers, kind).from_pretrained(self.name)
        # It raises OSError, ValueError, and what its parsers raise; ImportError where it is
        # missing.
        except Exception as error:
            raise unavailable(self.name, error) from error

    @property
    def width(self) -> int:
        """Numbers in an embedding, from the model's configuration alone."""
        return int(self._config.projection_dim if self._clip else self._of_text.hidden_size)

    @property
    def _of_text(self) -> Any:
        """The part of the configuration that is about texts."""
        return getattr(self._config, "text_config", self._config)

    def fingerprint(self) -> str:
        """Names the model: by the contents of a local folder, else by its commit."""
        total = hashlib.sha256(f"{_VERSION} {self._class}".encode())
        folder = Path(self.name)
        if folder.is_dir():
            for file in sorted(path for path in folder.iterdir() if path.is_file()):
                total.update(file.name.encode() + _sampled(file))
        else:
            commit = getattr(self._config, "_commit_hash", None)
            total.update(f"{self.name} {commit}".encode())
        return total.hexdigest()[:24]

    def encode(self, text: str) -> np.ndarray:
        """float32 [width]."""
        if self._tokenizer is None:
            self._tokenizer = self._get("AutoTokenizer")
        padding = {"padding": "max_length", "max_length": CLIP_TOKENS} if self._clip else {}
        more = {"return_token_type_ids": False, "return_attention_mask": True}  # all take these
        tokens = self._tokenizer(text, return_tensors="pt", **padding, **more)
        longest = self._of_text.max_position_embeddings
        if tokens["input_ids"].shape[1] > longest:
            more.update(truncation=True, max_length=longest)
            tokens = self._tokenizer(text, return_tensors="pt", **more)
        with torch.no_grad(), kept():  # making a model may draw numbers that training would get
            output = self._model.loaded().eval()(**tokens.to(self.device))
        found = output.text_embeds[0] if self._clip else output.last_hidden_state[0].sum(0)
        return found.float().cpu().numpy()

    def unload(self) -> None:
        """Frees the model; it is loaded again should another text come."""
        self._model = LanguageModel(lambda: self._get(self._class)).to(self.device)


class Embeddings:
    """The embeddings of all instructions of a run, under the observation key `key`."""

    def __init__(self, key: str, encoder: Encoder, texts: Sequence[str], rows: np.ndarray) -> None:
        self.key, self._encoder = key, encoder
        self._rows = {text: number for number, text in enumerate(texts)}
        self._table = torch.from_numpy(np.ascontiguousarray(rows, np.float32))

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return self._table.shape[1]

    def of(self, texts: Sequence[str], frames: int) -> torch.Tensor:
        """float32 [B, frames, width]: the texts' embeddings, the same for each frame."""
        for text in texts:
            if text not in self._rows:
                self._rows[text] = len(self._table)
                made = torch.from_numpy(self._encoder.encode(text))[None]
                self._table = torch.cat([self._table, made])
        rows = self._table[[self._rows[text] for text in texts]]
        return rows[:, None].repeat(1, frames, 1)


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


def _sampled(file: Path) -> bytes:
    """A digest of a small file, or of a large one's size and of blocks spread over it."""
    size, total = file.stat().st_size, hashlib.sha256()
    with open(file, "rb") as data:
        if size <= _WHOLE_BYTES:
            total.update(data.read())
        else:
            total.update(str(size).encode())
            for number in range(_BLOCKS):
                data.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                total.update(data.read(_BLOCK_BYTES))
    return total.digest()


def _known(path: Path, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The embeddings of those of `texts` that are in the file."""
    found = _read(path)
    return {text: found[text] for text in texts if text in found}


def _read(path: Path) -> dict[str, np.ndarray]:
    """All embeddings in the file; none where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
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
        path.parent.mkdir(parents=True, exist_ok=True)
        everything = {**_read(path), **known}
        names = sorted(everything)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                rows = np.stack([everything[name] for name in names])
                np.savez(file, texts=np.array([name.encode() for name in names]), rows=rows)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        logger.warning(
            "the embeddings %s cannot be kept (%s): every run will make them again; set "
            "train.data_cache_dir to a writable folder",
            path,
            error,
        )
