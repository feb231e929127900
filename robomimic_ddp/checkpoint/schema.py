"""Schemas of state files and of `ddp.json`, validated when a file is read.

A schema is a type or a tuple of types, a list with the schema of every item, or a dict with the
schema of each key. A key that ends with "?" is optional; other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MAYBE_NUMBER = (int, type(None))
_MAYBE_DICT = (dict, type(None))

RECORD = {"job?": (str, type(None)), "paths": [(str, type(None))]}
"""Of `ddp.json`: the keys that are read back."""

_MODEL_PART = {
    "optimizers": object,
    "lr_schedulers": object,
    "numbers": dict,
    "nets?": dict,
    "ema?": {"numbers": dict},
    "outside_nets?": dict,
}
_RANDOM = {
    "torch": object,
    "cuda": list,
    "numpy": {"words": object, "position": int, "gauss": object},
    "python": {"version": int, "words": object, "gauss": object},
}
_RANK = {"random": _RANDOM, "data": _MAYBE_DICT}
_RANK_INSIDE = {"samples": (int, float), "totals": dict, "step_logs": list}
_PLACES = {
    "pass": {"pass": int, "samples": int},
    "replay": {"batches": _MAYBE_NUMBER, "iterations?": (list, type(None))},
}
"""Of positions in the data, by kind. Loaders of RLDS data validate theirs."""
STATE = {
    "save_id": str,
    "job?": (str, type(None)),
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
    "grad_scaler?": _MAYBE_DICT,
}
INSIDE = {"epoch": int, "steps": int, "total?": _MAYBE_NUMBER}


def fault(value: Any, schema: Any, name: str) -> str | None:
    """What is wrong with `value`, such as "epoch is a str, not an int"; None if nothing is."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return f"{name} is {_article(type(value))}, not a dict"
        for key, inner in schema.items():
            plain = key.rstrip("?")
            if plain in value:
                found = fault(value[plain], inner, f"{name}.{plain}")
                if found:
                    return found
            elif plain == key:
                return f"{name} lacks {plain!r}"
        return None
    if isinstance(schema, list):
        if not isinstance(value, (list, tuple)):
            return f"{name} is {_article(type(value))}, not a list"
        found = (fault(item, schema[0], f"{name}[{number}]") for number, item in enumerate(value))
        return next((one for one in found if one), None)
    if isinstance(value, schema):
        return None
    kinds = schema if isinstance(schema, tuple) else (schema,)
    return f"{name} is {_article(type(value))}, not {' or '.join(map(_article, kinds))}"


def state_fault(state: Any) -> str | None:
    """What is wrong with the contents of a state file, or None."""
    found = fault(state, STATE, "state")
    if found is not None:
        return found
    if not state["ranks"]:
        return "state.ranks is empty"
    return next((one for one in _inner_faults(state) if one), None)


def _inner_faults(state: dict[str, Any]) -> Iterator[str | None]:
    """Checks that depend on other values of the state."""
    inside = state["inside"]
    if inside is not None:
        yield fault(inside, INSIDE, "state.inside")
    for number, rank in enumerate(state["ranks"]):
        if inside is not None:
            yield fault(rank, _RANK_INSIDE, f"state.ranks[{number}]")
        place = rank["data"] or {}
        yield fault(place, _PLACES.get(place.get("kind"), {}), f"state.ranks[{number}].data")
    for name, part in state["model"].items():
        yield fault(part, _MODEL_PART, f"state.model[{name!r}]")


def _article(kind: type) -> str:
    return "null" if kind is type(None) else f"{'an' if kind is int else 'a'} {kind.__name__}"
