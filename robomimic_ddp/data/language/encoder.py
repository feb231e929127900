"""The language model that embeds instructions, loaded when it is first needed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp import files
from robomimic_ddp.data.language.lazy_model import LanguageModel, unavailable
from robomimic_ddp.distributed.rng import kept

AUTO = "auto"
"""Value of the option: the key's usual model."""
MODELS = {
    "lang_emb": "openai/clip-vit-large-patch14",
    "lang_fixed/language_distilbert": "distilbert-base-uncased",
}
"""Observation key of an embedding -> the model that hosts with this key use."""
CLIP_TOKENS = 25
_VERSION = 1
"""Raised when embeddings of the same text change."""
_WHOLE_BYTES, _BLOCKS, _BLOCK_BYTES = 2**24, 16, 2**16


class Encoder:
    """The model `name` on `device`, loaded when a text must be encoded. `name`: a folder, a name
    for transformers, or AUTO for the one that hosts use for the observation key `key`. Raises
    DataError if it cannot be loaded.
    """

    def __init__(self, name: str, key: str, device: str = "cpu") -> None:
        self.name = MODELS[key] if name == AUTO else os.path.expanduser(name)
        self.device = device
        self._config = self._get("AutoConfig")
        self._clip = str(getattr(self._config, "model_type", "")).startswith("clip")
        self._class = "CLIPTextModelWithProjection" if self._clip else "AutoModel"
        self._of_text = getattr(self._config, "text_config", self._config)
        self._tokenizer: Any = None
        self.unload()

    def _get(self, kind: str) -> Any:
        try:
            import transformers

            return getattr(transformers, kind).from_pretrained(self.name)
        # OSError, ValueError, errors of its parsers, or ImportError if it is missing.
        except Exception as error:
            raise unavailable(self.name, error) from error

    @property
    def width(self) -> int:
        """Size of an embedding, from the model's configuration alone."""
        return int(self._config.projection_dim if self._clip else self._of_text.hidden_size)

    def fingerprint(self) -> str:
        """Identify the model: by the contents of a local folder, else by its commit."""
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
        """Return the embedding of `text`, float32 [width]."""
        if self._tokenizer is None:
            self._tokenizer = self._get("AutoTokenizer")
        padding = {"padding": "max_length", "max_length": CLIP_TOKENS} if self._clip else {}
        # All tokenizers take these.
        arguments = {"return_token_type_ids": False, "return_attention_mask": True}
        tokens = self._tokenizer(text, return_tensors="pt", **padding, **arguments)
        longest = self._of_text.max_position_embeddings
        if tokens["input_ids"].shape[1] > longest:
            arguments.update(truncation=True, max_length=longest)
            tokens = self._tokenizer(text, return_tensors="pt", **arguments)
        with torch.no_grad(), kept():  # constructing a model may draw random numbers
            output = self._model.loaded().eval()(**tokens.to(self.device))
        embedding = output.text_embeds[0] if self._clip else output.last_hidden_state[0].sum(0)
        return embedding.float().cpu().numpy()

    def unload(self) -> None:
        """Free the model; it is loaded again for the next text."""
        self._model = LanguageModel(lambda: self._get(self._class)).to(self.device)


def _sampled(file: Path) -> bytes:
    """Return a digest of a small file, or of a large one's size and of blocks spread over it."""
    size, total = file.stat().st_size, hashlib.sha256()
    with files.opened(file) as data:
        if size <= _WHOLE_BYTES:
            total.update(data.read())
        else:
            total.update(str(size).encode())
            for number in range(_BLOCKS):
                data.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                total.update(data.read(_BLOCK_BYTES))
    return total.digest()
