"""What our own files must hold: keys and kinds, checked when a file is read.

A shape is a type or a tuple of types, a list with the shape of every item, or a dict with the shape
of each key. A key that ends with "?" may be absent; other keys are not looked at.
"""

from __future__ import annotations

from typing import Any

_MAYBE_NUMBER = (int, type(None))
_MAYBE_DICT = (dict, type(None))

RECORD = {"job?": (str, type(None)), "paths": [(str, type(None))]}
"""Of `ddp.json`, as far as it is read back."""

_MODEL_PART = {"optimizers": object, "lr_schedulers": object, "numbers": dict, "nets?": dict}
_RANK = {
    "random": {"torch": object, "cuda": list, "numpy": dict, "python": dict},
    "data": _MAYBE_DICT,
    "samples?": (int, float),
    "totals?": dict,
    "step_logs?": list,
}
STATE = {
    "save_id": str,
    "epoch": int,
    "inside": _MAYBE_DICT,
    "steps": int,
    "world_size": int,
    "samples_per_step": int,
    "learning_rates": [[(int, float)]],
    "options": dict,
    "best": dict,
    "model": dict,
    "ranks": [_RANK],
    "defines?": {"config": dict, "statistics": dict, "data": dict},
    "gradient_orders?": dict,
    "powersgd?": _MAYBE_DICT,
    "grad_scaler?": _MAYBE_DICT,
}
INSIDE = {"epoch": int, "steps": int, "total?": _MAYBE_NUMBER}


def fault(value: Any, shape: Any, name: str) -> str | None:
    """What is wrong with `value`, such as "epoch is a str, not an int"; None where it fits."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{name} is {_article(type(value))}, not a dict"
        for key, inner in shape.items():
            plain = key.rstrip("?")
            if plain in value:
                found = fault(value[plain], inner, f"{name}.{plain}")
                if found:
                    return found
            elif plain == key:
                return f"{name} lacks {plain!r}"
        return None
    if isinstance(shape, list):
        if not isinstance(value, (list, tuple)):
            return f"{name} is {_article(type(value))}, not a list"
        found = (fault(item, shape[0], f"{name}[{number}]") for number, item in enumerate(value))
        return next((one for one in found if one), None)
    if isinstance(value, shape):
        return None
    kinds = shape if isinstance(shape, tuple) else (shape,)
    return f"{name} is {_article(type(value))}, not {' or '.join(map(_article, kinds))}"


def state_fault(state: Any) -> str | None:
    """What is wrong with the contents of a state file, or None."""
    found = fault(state, STATE, "state")
    if found is None and state["inside"] is not None:
        found = fault(state["inside"], INSIDE, "state.inside")
    if found is None and not state["ranks"]:
        found = "state.ranks is empty"
    if found is None:
        parts = ((name, part) for name, part in state["model"].items())
        faults = (fault(part, _MODEL_PART, f"state.model[{name!r}]") for name, part in parts)
        found = next((one for one in faults if one), None)
    return found


def _article(kind: type) -> str:
    return "null" if kind is type(None) else f"{'an' if kind is int else 'a'} {kind.__name__}"
