"""Language models that hosts load while their files are imported, before a rank has a device."""

from __future__ import annotations

from typing import Any, Callable

from robomimic_ddp.data.language.instructions import LanguageModel, unavailable

__all__ = ["LanguageModel", "language_model"]


def language_model(load: Callable) -> Callable:
    """`language_model(AutoModel.from_pretrained)(name, ...)`: the model, loaded at its first use.

    Returns a proxy: `.to(...)` before the first use is deferred. On several ranks, without
    gradients, each distinct text (tokens with their padding) is encoded once. On one rank every
    batch is encoded whole, as in the host: other batch sizes would round differently.
    """

    def on_first_use(*args: Any, **kwargs: Any) -> LanguageModel:
        def loaded() -> Any:
            try:
                return load(*args, **kwargs)
            except OSError as error:  # of transformers, for all missing files
                raise unavailable(str(args[0]) if args else "?", error) from error

        return LanguageModel(loaded)

    return on_first_use
