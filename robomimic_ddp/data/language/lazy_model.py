"""A language model that is loaded when it is first used, and the error if it cannot be.

Hosts load theirs (DistilBERT, CLIP) while their files are imported, before a rank has a device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError

MOST_TEXTS = 1000
"""Texts whose outputs a model keeps, the last used ones: about 236 kB each."""


def unavailable(name: str, error: Exception) -> DataError:
    """Return the error for a model that could not be loaded, with how to provide it."""
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    is_name = name.count("/") < 2 and not name.startswith(("/", ".", "~"))
    wanted = name if is_name else "distilbert-base-uncased"
    return DataError(
        f"the language model {name!r} could not be loaded: {reason}\n"
        "Expected a folder with the model's files, or a name that transformers finds in its cache "
        "or downloads. Without a network: on a machine that has one, run\n"
        f"    python -c \"from huggingface_hub import snapshot_download as get; get('{wanted}', "
        "local_dir='language_model')\"\n"
        "copy the folder language_model to a disk that every rank reads, and set "
        "ddp.language_model=THAT_FOLDER (for a model that the host's own code loads: put it into "
        "the cache, HF_HOME)."
    )


def language_model(load: Callable) -> Callable:
    """Wrap `load`: `language_model(AutoModel.from_pretrained)(name, ...)` loads at its first use.

    On several ranks, without gradients, each distinct text (tokens with padding) is encoded once.
    One rank encodes whole batches, as the host: other batch sizes would round differently.
    """

    def on_first_use(*args: Any, **kwargs: Any) -> LanguageModel:
        def loaded() -> Any:
            try:
                return load(*args, **kwargs)
            except OSError as error:  # of transformers, for all missing files
                raise unavailable(str(args[0]) if args else "?", error) from error

        return LanguageModel(loaded)

    return on_first_use


class LanguageModel:
    """Proxy of a model that is loaded at the first call or attribute access."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._model: Any = None
        self._moves: list[tuple[tuple, dict]] = []
        self._rows: OrderedDict[tuple, dict[str, torch.Tensor]] = OrderedDict()
        self._splits = True

    def to(self, *args: Any, **kwargs: Any) -> LanguageModel:
        """Same as `Module.to`."""
        if self._model is None:
            self._moves.append((args, kwargs))
        else:
            self._model.to(*args, **kwargs)
            self._rows.clear()
        return self

    def eval(self) -> LanguageModel:
        """Same as `Module.eval`; `from_pretrained` returns models in eval mode."""
        if self._model is not None:
            self._model.eval()
        return self

    def loaded(self) -> Any:
        """Return the model itself, loaded and moved if needed."""
        if self._model is None:
            model = self._load()
            for args, kwargs in self._moves:
                model = model.to(*args, **kwargs)
            self._model = model
        return self._model

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loaded(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.loaded()
        batch = _batch_size(args, kwargs)
        trains = torch.is_grad_enabled() or getattr(model, "training", True)
        if not batch or trains or group.world_size() == 1 or not self._splits:
            return model(*args, **kwargs)
        keys = _keys(kwargs, batch)
        output = self._encode(model, kwargs, keys)
        return model(**kwargs) if output is None else output

    def _encode(self, model: Any, inputs: Mapping, keys: list[tuple]) -> Any:
        """Return the output; only new rows go through the model. None if the output has no rows."""
        wanted = {key: index for index, key in enumerate(keys) if key not in self._rows}
        if wanted:
            rows = torch.tensor(list(wanted.values()))
            output = model(**{k: v[rows.to(v.device)] for k, v in inputs.items()})
            if not _has_rows(output, len(wanted)):
                self._splits = False
                return None
            self._kind = type(output)
            for number, key in enumerate(wanted):
                self._rows[key] = {name: value[number] for name, value in output.items()}
        for key in keys:
            self._rows.move_to_end(key)
        stored = [self._rows[key] for key in keys]
        output = self._kind(
            **{name: torch.stack([row[name] for row in stored]) for name in stored[0]}
        )
        while len(self._rows) > MOST_TEXTS:
            self._rows.popitem(last=False)
        return output


def _batch_size(args: tuple, inputs: Mapping) -> int:
    """Return the rows of keyword tensors, as tokenizers return them; 0 for other calls."""
    values = list(inputs.values())
    if args or not values or not all(isinstance(v, torch.Tensor) and v.dim() for v in values):
        return 0
    sizes = {len(value) for value in values}
    return sizes.pop() if len(sizes) == 1 else 0


def _keys(inputs: Mapping, batch: int) -> list[tuple]:
    columns = [value.detach().cpu().contiguous().numpy() for _, value in sorted(inputs.items())]
    return [tuple((c[row].shape, c[row].tobytes()) for c in columns) for row in range(batch)]


def _has_rows(output: Any, rows: int) -> bool:
    return isinstance(output, Mapping) and all(
        isinstance(value, torch.Tensor) and value.dim() and len(value) == rows
        for value in output.values()
    )
