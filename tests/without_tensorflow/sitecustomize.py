"""First on PYTHONPATH: every process finds no TensorFlow, as where it is not installed."""

from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_find = PathFinder.find_spec


def find_spec(fullname: str, *more: Any, **named: Any) -> "ModuleSpec | None":
    """Find what Python would, but for TensorFlow."""
    if fullname.partition(".")[0] == "tensorflow":
        return None
    return _find(fullname, *more, **named)


PathFinder.find_spec = find_spec  # type: ignore[method-assign]
