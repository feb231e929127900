"""The host's Algo as a nest of dicts, lists, tensors and plain values: all that a step changes.

Nothing else is allowed in a state file, so that `torch.load(weights_only=True)` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import host_algo, tree_collectives
from robomimic_ddp.errors import CheckpointError

PLAIN = (str, bool, int, float, type(None))
STATEFUL = ("optimizers", "lr_schedulers")
"""Attributes of a host's Algo: nests of objects with state_dict, and None."""


def capture_model(algo: Any) -> dict[str, Any]:
    """Collective where nets are sharded: return the state of `algo`: each part's nets with buffers,
    optimizers, schedules, averages with counters, and numbers; the modules, optimizers and
    schedules that it has elsewhere; and what optimizers update outside all modules.

    Tensors are the model's own; sharded ones are whole, on the main rank's CPU, and None on others.
    `plain` makes it ready for a file.
    """
    state = {name: _capture_part(part) for name, part in host_algo.parts(algo)}
    for kind, objects in elsewhere(algo).items():
        if objects:
            state[""][kind] = tree.mapped(_own_state, objects)
    outside = dict(host_algo.outside_nets(algo))
    if outside:
        state[""]["outside_nets"] = outside
    return tree_collectives.whole(state)


def elsewhere(algo: Any) -> dict[str, dict[str, Any]]:
    """Return what `algo` trains with outside the attributes that robomimic has, by kind and name:
    modules, and optimizers, schedules, scalers and averages.
    """
    return {
        "modules": dict(host_algo.modules_elsewhere(algo)),
        "stateful": dict(host_algo.stateful_elsewhere(algo)),
    }


def _own_state(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else None


def _capture_part(part: Any) -> dict[str, Any]:
    attributes = vars(part)
    state: dict[str, Any] = {
        name: module.state_dict()
        for name, module in attributes.items()
        if name in ("nets", "ema_nets") and isinstance(module, nn.Module)
    }
    for name in STATEFUL:
        state[name] = tree.mapped(_own_state, attributes.get(name))
    if attributes.get("ema") is not None:
        state["ema"] = _capture_average(attributes["ema"])
    state["numbers"] = numbers(part)
    return state


def _capture_average(ema: Any) -> dict[str, Any]:
    """Ours or diffusers' EMAModel: `shadow_params` (parameters=) or `averaged_model` (model=), and
    its numbers. Its own state_dict exists in neither API as a whole: 0.11 has none.
    """
    state: dict[str, Any] = {"numbers": numbers(ema)}
    shadow, averaged = vars(ema).get("shadow_params"), vars(ema).get("averaged_model")
    if shadow is not None:
        state["shadow_params"] = list(shadow)
    if isinstance(averaged, nn.Module):
        state["averaged_model"] = averaged.state_dict()
    return state


def numbers(owner: Any) -> dict[str, Any]:
    """Attributes of `owner` that are numbers or flags: step counts, decays, "checked already"; no
    members of enumerations.
    """
    return {
        name: value
        for name, value in vars(owner).items()
        if type(value) in (bool, int, float) or isinstance(value, np.generic)
    }


def plain(value: Any, path: str = "state") -> Any:
    """`value` with mappings as dict, sequences as list, arrays and tensors as CPU tensors, numpy
    numbers as Python's. Raises CheckpointError, naming the place, for anything else.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), path)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Mapping):
        return {_key(key, path): plain(part, f"{path}.{key}") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, f"{path}[{index}]") for index, part in enumerate(value)]
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which a state file cannot contain: it takes tensors, "
        "numbers, text, lists and dictionaries only, so that reading it never runs code. Give the "
        "object that owns it a state_dict of such values."
    )


def _key(key: Any, path: str) -> Any:
    if type(key) not in (str, int):
        key = plain(key, f"a key of {path}")
    return key
