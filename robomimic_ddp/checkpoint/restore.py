"""Puts a captured model state into a host's Algo, in place where tensors are shared.

The tensors may be with the main rank (`tree_collectives.Lent`): ranks fetch them one by one, in
the same order, and keep their shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from robomimic_ddp.checkpoint.capture import STATEFUL, elsewhere, numbers
from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.distributed.host_objects import is_shared
from robomimic_ddp.distributed.tree_collectives import Lent
from robomimic_ddp.errors import CheckpointError


def restore_model(algo: Any, state: Mapping[str, Any]) -> None:
    """Collective where `state` is lent or nets are sharded: puts what `capture_model` returned into
    `algo`, in place, so that optimizers and parallel nets keep seeing the tensors. Raises
    CheckpointError, naming the part, where the model is another one.
    """
    parts = dict(host_algo.parts(algo))
    _require_same_names("parts of the algorithm", parts, state)
    for name, part in parts.items():
        _restore_part(part, state[name], f"{name}." if name else "")
    for kind, objects in elsewhere(algo).items():
        of_kind = state[""].get(kind, {})
        _require_same_names(f"{kind} outside nets and optimizers", objects, of_kind)
        for name, value in objects.items():
            load = _load_module if isinstance(value, nn.Module) else _load_nest
            load(value, of_kind[name], name)
    outside = dict(host_algo.outside_nets(algo))
    saved = state[""].get("outside_nets", {})
    _require_same_names("what optimizers update outside the nets", outside, saved)
    with torch.no_grad():
        for name, tensor in outside.items():
            tensor.copy_(_received(saved[name], tensor))


def _received(value: Any, like: Any) -> Any:
    """Collective for a lent or sharded tensor: `value` as this rank keeps it for `like`, in the
    same order in memory, which fused optimizers do not look at.
    """
    tensor = value.fetch() if isinstance(value, Lent) else value
    are_tensors = isinstance(tensor, torch.Tensor) and isinstance(like, torch.Tensor)
    if are_tensors and tensor.shape == like.shape:
        if fsdp.is_sharded(like):
            return fsdp.shard_like(tensor, like)
        if tensor.stride() != like.stride():
            return torch.empty_like(like, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor


def _restore_part(part: Any, state: Mapping[str, Any], prefix: str) -> None:
    for name in ("nets", "ema_nets"):
        module = vars(part).get(name)
        if isinstance(module, nn.Module) or name in state:
            _load_module(module, state.get(name), prefix + name)
    for name in STATEFUL:
        _load_nest(vars(part).get(name), state[name], prefix + name)
    ema = vars(part).get("ema")
    if (ema is not None) != ("ema" in state):
        raise _other_model(f"{prefix}ema: averaging was {'on' if 'ema' in state else 'off'}")
    if ema is not None:
        _restore_average(ema, state["ema"], prefix)
    _restore_numbers(part, state["numbers"])


def _load_module(module: Any, state: Any, name: str) -> None:
    if not isinstance(module, nn.Module) or state is None:
        raise _other_model(f"{name}: only the {'model' if state is None else 'state'} has it")
    present = module.state_dict()
    received = {key: _received(value, present.get(key)) for key, value in state.items()}
    try:
        module.load_state_dict(received)
    except RuntimeError as error:
        raise _other_model(f"{name}: {error}") from error


def _load_nest(nest: Any, state: Any, name: str) -> None:
    if isinstance(nest, Mapping):
        _require_same_names(name, nest, state or {})
        for key, value in nest.items():
            _load_nest(value, state[key], f"{name}[{key!r}]")
    elif isinstance(nest, (list, tuple)):
        saved = len(state) if isinstance(state, (list, tuple)) else "none"
        if len(nest) != saved:
            raise _other_model(f"{name}: {saved} were saved, the model has {len(nest)}")
        for index, value in enumerate(nest):
            _load_nest(value, state[index], f"{name}[{index}]")
    elif hasattr(nest, "load_state_dict"):
        if state is None:
            raise _other_model(f"{name}: none was saved, the model has one")
        try:
            nest.load_state_dict(_with_kinds(nest, _owned(nest, state)))
        except (ValueError, KeyError, RuntimeError) as error:
            raise _other_model(f"{name}: {error}") from error
    elif state is not None:
        raise _other_model(f"{name}: one was saved, the model has none")


def _owned(owner: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer or a schedule with its tensors as this rank keeps them. An
    optimizer numbers its parameters, and keeps tensors of their shapes for each.
    """
    parameters = host_algo.held_by(owner) if isinstance(owner, torch.optim.Optimizer) else []
    likes = dict(enumerate(parameters))

    def owned(value: Any, like: Any = None) -> Any:
        return tree.mapped(lambda part: _received(part, like), value)

    return {
        key: {number: owned(part, likes.get(number)) for number, part in value.items()}
        if parameters and key == "state"
        else owned(value)
        for key, value in state.items()
    }


def _with_kinds(owner: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """MultiStepLR keeps its milestones in a Counter and asks it for its elements."""
    kinds = {name: type(value) for name, value in vars(owner).items()}
    return {
        name: Counter(value) if kinds.get(name) is Counter else value
        for name, value in state.items()
    }


def _restore_average(ema: Any, state: Mapping[str, Any], prefix: str) -> None:
    shadow = vars(ema).get("shadow_params")
    saved = state.get("shadow_params")
    if (shadow is None) != (saved is None):
        raise _other_model(
            f"{prefix}ema: another form of EMAModel (model=, or parameters=) averaged "
            "the saved weights"
        )
    if shadow is not None:
        if [tensor.shape for tensor in shadow] != [tensor.shape for tensor in saved]:
            raise _other_model(f"{prefix}ema.shadow_params: other shapes")
        with torch.no_grad():
            for tensor, value in zip(shadow, saved):
                tensor.copy_(_received(value, tensor))
    averaged = vars(ema).get("averaged_model")
    if isinstance(averaged, nn.Module) or "averaged_model" in state:
        _load_module(averaged, state.get("averaged_model"), f"{prefix}ema.averaged_model")
    _restore_numbers(ema, state["numbers"])


def _restore_numbers(owner: Any, saved: Mapping[str, Any]) -> None:
    """Collective: sets attributes that exist; `cur_decay_value` of diffusers is None before the
    first step. Those that are a rank's own by their name, such as `rank`, stay where they differ
    from the main rank's, whose numbers were saved.
    """
    of_rank = {name for name in saved if not is_shared(name)}
    of_main = group.broadcast_object(numbers(owner)) if of_rank else {}
    for name, value in saved.items():
        is_own = name in of_rank and vars(owner).get(name) != of_main.get(name)
        if name in vars(owner) and not is_own:
            setattr(owner, name, value)


def _require_same_names(what: str, model: Any, state: Any) -> None:
    if set(model) != set(state):
        raise _other_model(f"{what}: saved {sorted(state)}, the model has {sorted(model)}")


def _other_model(difference: str) -> CheckpointError:
    return CheckpointError(
        f"the saved state does not fit the model that the config describes: {difference}. Expected "
        "the same nets, optimizers and averages, since a resumed run continues all of them. Resume "
        "with the run's own config (config.json in its directory), or start a new run."
    )
