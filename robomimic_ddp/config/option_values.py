"""Reads the value of an option from text or JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from robomimic_ddp import files

_TRUTH = {
    **dict.fromkeys(("true", "1", "on", "yes"), True),
    **dict.fromkeys(("false", "0", "off", "no"), False),
}


def choose(text: str, choices: tuple[str, ...], also: tuple[str, str] | None) -> str | None:
    """Return the choice that `text` spells; None for another text."""
    text = text.lower()
    if text in choices or (also and re.fullmatch(also[1], text)):
        return text
    return str(_TRUTH[text]).lower() if "true" in choices and text in _TRUTH else None


def convert(kind: type, raw: Any) -> Any:
    """Return `raw` as `kind`, or None where it is not one."""
    if kind is dict:
        return _mapping(raw)
    if kind is bool:
        return raw if isinstance(raw, bool) else _TRUTH.get(str(raw).strip().lower())
    if kind is str:
        return str(raw).strip() if isinstance(raw, (str, int)) else None
    if isinstance(raw, bool):
        return None
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None
    is_one = math.isfinite(value) and (kind is float or value.is_integer())
    return kind(value) if is_one else None


def _mapping(raw: Any) -> dict[str, Any] | None:
    if isinstance(raw, str):
        with suppress(ValueError):
            raw = files.parse_yaml(raw)
    is_one = isinstance(raw, Mapping) and all(isinstance(name, str) for name in raw)
    return dict(raw) if is_one else None
