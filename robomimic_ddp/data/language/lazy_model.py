"""A language model that is loaded when it is first used, and the error if it cannot be.

Hosts load theirs (DistilBERT, CLIP) while their files are imported, before a rank has a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robomimic_ddp.errors import DataError


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
    """Wrap `load`, so that `language_model(AutoModel.from_pretrained)(name, ...)` loads at its
    first use.
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

    def to(self, *args: Any, **kwargs: Any) -> LanguageModel:
        """Same as `Module.to`."""
        if self._model is None:
            self._moves.append((args, kwargs))
        else:
            self._model.to(*args, **kwargs)
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
        return self.loaded()(*args, **kwargs)
