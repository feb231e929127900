"""The host's `Algo` object as the retrofit sees it: nets, averaged weights, optimizers.

Read by attribute, since hosts differ: `nets` (all), `ema_nets` and `ema.shadow_params` (current
diffusers), `ema.averaged_model` (diffusers 0.11; ours has both names), `optimizers` (a dict of
optimizers, or of lists of them). A hierarchical algorithm (HBC, IRIS) has these in its parts. What
else an algorithm has, such as `self.model` and `self.optimizer`, is found by `host_objects`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from robomimic_ddp.distributed import group, host_objects
from robomimic_ddp.distributed.host_objects import is_shared, once, walk


def parts(algo: Any, objects: list | None = None) -> Iterator[tuple[str, Any]]:
    """("", algo), and what it is made of, each once: the algorithms of a hierarchical one
    ("planner", ...), other objects with modules or optimizers ("agents[0]", ...). `objects`:
    the result of `walk(algo)`, where it is known.
    """
    yield "", algo
    objects = walk(algo) if objects is None else objects
    yield from ((name, value) for name, value in objects if _is_part(value))


def _is_part(value: Any) -> bool:
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or _is_average(value):
        return False
    kind = type(value)  # asked of the class: hosts' configs raise for names
    if hasattr(kind, "serialize"):
        return True
    trains = any(
        isinstance(member, (nn.Module, torch.optim.Optimizer)) for member in vars(value).values()
    )
    return trains and not hasattr(kind, "state_dict")


def _is_average(value: Any) -> bool:
    return bool({"shadow_params", "averaged_model"} & {*getattr(value, "__dict__", ())})


def _of_parts(algo: Any, attribute: str, objects: list | None = None) -> Iterator[tuple[str, Any]]:
    """(prefix of names, value) of each part that has the attribute: ("planner.", value)."""
    for name, part in parts(algo, objects):
        value = getattr(part, attribute, None)
        if value is not None:
            yield f"{name}." if name else "", value


def named_nets(algo: Any, objects: list | None = None) -> Iterator[tuple[str, nn.Module]]:
    """("nets", algo.nets); a hierarchical algorithm has none, but parts: ("planner.nets", ...)."""
    for prefix, nets in _of_parts(algo, "nets", objects):
        if isinstance(nets, nn.Module):
            yield f"{prefix}nets", nets


def modules_elsewhere(algo: Any) -> Iterator[tuple[str, nn.Module]]:
    """Every module that `algo` has outside its nets and averages: ("model", algo.model)."""
    objects = walk(algo)
    known = {
        id(module)
        for _, net in [*named_nets(algo, objects), *_averaged(algo)]
        for module in net.modules()
    }
    for name, value in objects:
        if isinstance(value, nn.Module) and id(value) not in known:
            known.update(map(id, value.modules()))
            yield name, value


@once
def named_roots(algo: Any) -> list[tuple[str, nn.Module]]:
    """Every module that is in no other one: the nets, then those elsewhere; no averages."""
    return [*named_nets(algo), *modules_elsewhere(algo)]


def stateful_elsewhere(algo: Any, objects: list | None = None) -> Iterator[tuple[str, Any]]:
    """Every optimizer, schedule, scaler and average outside `optimizers`, `lr_schedulers` and
    `ema`: ("optimizer", algo.optimizer).
    """
    objects = walk(algo) if objects is None else objects
    known = {
        id(member)
        for kind in ("optimizers", "lr_schedulers")
        for _, member in _named(algo, kind, objects)
    }
    known.update(id(ema) for _, ema in _of_parts(algo, "ema", objects))
    for name, value in objects:
        if id(value) not in known and _has_state(value):
            yield name, value


def _has_state(value: Any) -> bool:
    if isinstance(value, torch.optim.Optimizer):
        return True
    if isinstance(value, nn.Module) or not hasattr(type(value), "load_state_dict"):
        return False
    has_optimizer = "optimizer" in getattr(value, "__dict__", ())
    return type(value).__module__.startswith("torch.") or has_optimizer or _is_average(value)


def is_training(algo: Any) -> bool:
    """Return whether the nets are in training mode; those of all parts change it together."""
    roots = chain(named_nets(algo), modules_elsewhere(algo))  # mostly the first net tells
    return next((module.training for _, module in roots), False)


@once
def named_modules(algo: Any) -> list[tuple[str, nn.Module]]:
    """Every module that the algorithm trains with; names as in `nets.named_modules()`."""
    named = []
    for name, root in named_roots(algo):
        prefix = name[: -len("nets")] if name.split(".")[-1] == "nets" else f"{name}."
        named += [
            (f"{prefix}{inner}".rstrip("."), module) for inner, module in root.named_modules()
        ]
    return named


def named_parameters(algo: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter of the modules: ("nets.policy...", parameter)."""
    for name, root in named_roots(algo):
        yield from root.named_parameters(name)


def named_state(algo: Any) -> list[tuple[str, torch.Tensor]]:
    """Return every parameter and buffer of the nets and of the averaged copy, and what optimizers
    update outside the nets, with a name that is equal on all ranks.
    """
    named = [
        (f"{prefix}.{name}", tensor)
        for prefix, module in [*named_roots(algo), *_averaged(algo)]
        for name, tensor in module.state_dict(keep_vars=True).items()
    ]
    ema = getattr(algo, "ema", None)
    shadow = getattr(ema, "shadow_params", None) or []
    if isinstance(getattr(ema, "averaged_model", None), nn.Module):
        shadow = vars(ema).get("shadow_params", [])  # ours are that module's parameters
    named += [(f"ema.shadow_params[{index}]", tensor) for index, tensor in enumerate(shadow)]
    named += outside_nets(algo)
    return [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]


def outside_nets(algo: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors outside nets that optimizers update: ("optimizer alpha[0]", tensor)."""
    inside = {id(parameter) for _, parameter in named_parameters(algo)}
    return [
        (f"optimizer {name}[{index}]", parameter)
        for name, optimizer in named_optimizers(algo)
        for index, parameter in enumerate(held_by(optimizer))
        if id(parameter) not in inside
    ]


def held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups."""
    return [parameter for entry in optimizer.param_groups for parameter in entry["params"]]


def averaged_modules(algo: Any) -> list[nn.Module]:
    """Nets of averaged weights: of current diffusers `ema_nets`, of 0.11 `ema.averaged_model`."""
    return [module for _, module in _averaged(algo)]


def _averaged(algo: Any) -> list[tuple[str, nn.Module]]:
    owners = (("ema_nets", algo), ("averaged_model", getattr(algo, "ema", None)))
    modules = [(name, getattr(owner, name, None)) for name, owner in owners]
    return [(name, module) for name, module in modules if isinstance(module, nn.Module)]


def counters(algo: Any) -> dict[str, Any]:
    """Return what steers the next step and must agree over ranks: steps and learning rates."""
    counts: dict[str, Any] = {}
    step = getattr(getattr(algo, "ema", None), "optimization_step", None)
    if step is not None:
        counts["ema.optimization_step"] = int(step)
    for name, optimizer in named_optimizers(algo):
        steps = _taken(optimizer)
        if steps:
            counts[f"optimizer {name} step"] = (min(steps), max(steps))
        counts[f"optimizer {name} learning rates"] = [
            entry["lr"] for entry in optimizer.param_groups
        ]
    objects = walk(algo)
    elsewhere = [(f"self.{name}", value) for name, value in stateful_elsewhere(algo, objects)]
    for name, schedule in [*_named(algo, "lr_schedulers", objects), *elsewhere]:
        if not hasattr(schedule, "last_epoch"):
            continue
        counts[f"schedule {name} steps"] = schedule.last_epoch
    return counts


def noise_schedulers(algo: Any) -> Iterator[tuple[str, Any]]:
    """Every object with a method `add_noise`, as those of diffusers have."""
    for prefix, owner in parts(algo):
        for name, value in vars(owner).items():
            if callable(getattr(type(value), "add_noise", None)):
                yield f"{prefix}.{name}" if prefix else name, value


def plain_tensors(algo: Any) -> dict[str, torch.Tensor]:
    """Return the tensors and arrays that the algorithm and its objects have outside modules and
    averages, as "self.discretizer.bins"; not those that are a rank's own by their name.
    """
    known = {id(tensor) for _, tensor in named_state(algo)}
    return {
        f"self.{path}": tensor
        for path, attribute, tensor in host_objects.plain_tensors(algo)
        if id(tensor) not in known and is_shared(attribute)
    }


def plain_numbers(owners: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the whole numbers, floats and switches among the attributes of `owners` (`parts`), as
    "self.counter"; not those that are a rank's own by their name.
    """
    return {
        f"self.{prefix}.{name}" if prefix else f"self.{name}": value
        for prefix, owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, (int, float, np.generic)) and is_shared(name)
    }


def named_optimizer_state(algo: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that an optimizer keeps for a parameter of the nets, such as Adam's moments."""
    named = [*named_parameters(algo), *outside_nets(algo)]
    names = {id(parameter): name for name, parameter in named}
    for optimizer_name, optimizer in named_optimizers(algo):
        for parameter, state in optimizer.state.items():
            of = names.get(id(parameter), "a parameter outside nets")
            for key in sorted(key for key, value in state.items() if torch.is_tensor(value)):
                yield f"optimizer {optimizer_name}: {key} of {of}", state[key]


def steps(algo: Any) -> int:
    """Optimizer steps that the model has had; of several optimizers, the most that one has."""
    counts = [0]
    for _, optimizer in named_optimizers(algo):
        counts += _taken(optimizer)
    return max(counts)


def _taken(optimizer: torch.optim.Optimizer) -> list[int]:
    """Steps that each parameter has had; those that stay on a GPU are read at once."""
    by_device: dict[Any, list] = {}
    for state in optimizer.state.values():
        if "step" in state:
            by_device.setdefault(getattr(state["step"], "device", None), []).append(state["step"])
    read = by_device.pop(None, [])
    for counts in by_device.values():
        read += torch.stack([count.reshape(()) for count in counts]).tolist()
    return [int(count) for count in read]


def named_optimizers(algo: Any) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Each optimizer once, with its name in the host's dict; members of a list as `name[0]`, ...,
    those of a part of a hierarchical algorithm as `planner.name`, others as `self.agent.optimizer`.
    """
    objects = walk(algo)
    yield from _named(algo, "optimizers", objects)
    for name, value in stateful_elsewhere(algo, objects):
        if isinstance(value, torch.optim.Optimizer):
            yield f"self.{name}", value


def _named(algo: Any, attribute: str, objects: list) -> Iterator[tuple[str, Any]]:
    """The members of each part's `attribute`, a dict, list or nest of both, each once."""
    seen: set[int] = set()
    for prefix, nest in _of_parts(algo, attribute, objects):
        members = nest.items() if isinstance(nest, dict) else [(attribute, nest)]
        for key, value in members:
            for name, member in _leaves(value, f"{prefix}{key}"):
                if member is not None and id(member) not in seen:
                    seen.add(id(member))
                    yield name, member


def _leaves(nest: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(nest, (dict, list, tuple)):
        for key, value in nest.items() if isinstance(nest, dict) else enumerate(nest):
            yield from _leaves(value, f"{name}[{key!r}]")
    else:
        yield name, nest


def make_equal(algo: Any) -> None:
    """Collective: overwrites nets, buffers and averages with the main rank's, in place."""
    _broadcast([tensor for _, tensor in named_state(algo)])


@host_objects.unchanged()
def make_buffers_equal(algo: Any) -> None:
    """Collective: gives every rank the main rank's buffers, of nets and of averaged copies.

    Each rank's training forwards update its own (BatchNorm's running means), also where DDP copies
    them before a forward: after the last one they differ by design.
    """
    modules = [module for _, module in [*named_roots(algo), *_averaged(algo)]]
    _broadcast([buffer for module in modules for buffer in module.buffers()])


def _broadcast(tensors: list[torch.Tensor]) -> None:
    seen: set[int] = set()
    sent = []
    for tensor in tensors:
        # Tied tensors travel once; an expanded one (stride 0) cannot be written to.
        if tensor.numel() and tensor.data_ptr() not in seen and 0 not in tensor.stride():
            seen.add(tensor.data_ptr())
            sent.append(tensor)
    group.broadcast_tensors(sent)
