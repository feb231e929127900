"""Finds the fixers: each module of `fixers/` has one FIXER, or FIXERS by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from robomimic_ddp.errors import UsageError, did_you_mean
from robomimic_ddp.patches import fixers
from robomimic_ddp.patches.outcomes import Fixer


@cache
def all_fixers() -> dict[str, Fixer]:
    """Return every fixer by its name (its file's, or its key in the file's table), sorted."""
    by_name = {}
    for module in pkgutil.iter_modules(fixers.__path__):
        loaded = importlib.import_module(f"{fixers.__name__}.{module.name}")
        by_name |= getattr(loaded, "FIXERS", None) or {module.name: loaded.FIXER}
    return {name: replace(by_name[name], name=name) for name in sorted(by_name)}


def select(with_: Iterable[str] = (), without: Iterable[str] = ()) -> list[Fixer]:
    """Return the fixers to run: those on by default, plus `with_`, less `without`: names of fixers
    or of seams (all their fixers). Raises UsageError for an unknown one.
    """
    known = all_fixers()
    chosen = {name for name, fixer in known.items() if fixer.default}
    chosen = (chosen | _expand(with_)) - _expand(without)
    return [known[name] for name in known if name in chosen]


def _expand(words: Iterable[str]) -> set[str]:
    known = all_fixers()
    names: set[str] = set()
    for word in words:
        hits = {name for name, fixer in known.items() if word in (name, fixer.seam)}
        if not hits:
            choices = sorted({*known, *(fixer.seam for fixer in known.values())})
            hint = did_you_mean(word, choices)
            optional = ", ".join(name for name, fixer in known.items() if not fixer.default)
            raise UsageError(
                f"no edit or area is named {word!r}.{hint} robomimic-ddp status lists them; off by "
                f"default: {optional}."
            )
        names |= hits
    return names
