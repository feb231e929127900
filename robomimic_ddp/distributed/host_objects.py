"""Finds what an algorithm has, at any depth: in attributes, lists, dictionaries, other objects.

A miss is not silent: on several ranks `step_guard` refuses the first step of an
optimizer that nothing averages gradients for.
"""

from __future__ import annotations

import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

_Found = TypeVar("_Found")
_LEAVES = (
    *(str, bytes, int, float, complex, type(None), np.ndarray, np.generic, torch.Tensor),
    *(type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
    *(torch.device, torch.dtype, torch.Generator, DataLoader, Dataset, Sampler),
)
"""Types that contain nothing that is trained. Data would take long to walk through."""
_CONTAINERS = (dict, list, tuple, deque)  # a set's order may differ between ranks
_LONGEST = 1000
"""Entries of a container that is looked into: longer ones contain data."""
_DEEPEST = 12
_OURS = "robomimic_ddp.distributed."
_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has: its parameters, children and hooks."""
_OF_A_RANK = re.compile(r"(^|_)(rank|device|gpu|seed|rng|generator|time|pid|node|worker)s?(_|$)")


@lru_cache(maxsize=4096)  # asked of every attribute in every step
def is_shared(attribute: str) -> bool:
    """Return whether all ranks should have the same there: not in what is a rank's by its name."""
    return not _OF_A_RANK.search(attribute)


_found: list[dict[tuple[Any, int], tuple[Any, Any]]] = []
"""What functions that are decorated with `once` have returned in the present block of `unchanged`,
by function and the id of the owner, which it keeps: another object could get the id.
"""


def once(find: Callable[[Any], _Found]) -> Callable[[Any], _Found]:
    """Decorate `find(owner)`, which looks into each owner once in a block of `unchanged`."""

    @wraps(find)
    def found(owner: Any) -> _Found:
        known = _found[-1] if _found else {}
        if (find, id(owner)) not in known:
            known[find, id(owner)] = owner, find(owner)
        return known[find, id(owner)][1]

    return found


@contextmanager
def unchanged() -> Iterator[None]:
    """For the block or the decorated function, in which no algorithm changes, functions with `once`
    look into each once: a proof asks dozens of times. A block inside another one adds nothing.
    """
    _found.append(_found[-1] if _found else {})
    try:
        yield
    finally:
        _found.pop()


@once
def walk(owner: Any) -> list[tuple[str, Any]]:
    """Return (path, object) for each object that `owner` has, once: ("agents[0].adam", ...).

    Objects come before what they contain, attributes in order, and modules inside a module are not
    listed one by one. References back, to `owner` or to others, are not followed.
    """
    objects: list[tuple[str, Any]] = []
    _walk(owner, "", {id(owner)}, objects, 0)
    return objects


def plain_tensors(owner: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield (path, attribute, tensor) of what `owner` and its objects keep outside modules, such as
    clusters of actions that a host has fitted: ("discretizer.bins", "bins", tensor). Arrays are
    tensors of the same memory; those that torch cannot read, such as texts, are left out.
    """
    seen: set[int] = set()
    for path, value in [("", owner), *walk(owner)]:
        attributes = getattr(value, "__dict__", None)
        of_torch = isinstance(value, nn.Module) or type(value).__module__.startswith("torch.")
        for name, member in [] if of_torch or attributes is None else list(attributes.items()):
            place = f"{path}.{name}" if path else name
            for inner, tensor in _tensors_in(member, place, seen):
                yield inner, name, tensor


def _tensors_in(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(value, (torch.Tensor, np.ndarray, *_CONTAINERS)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, _CONTAINERS):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for index, (key, member) in enumerate(list(pairs) if len(value) <= _LONGEST else ()):
            name = repr(key) if isinstance(key, (int, str)) else index
            yield from _tensors_in(member, f"{path}[{name}]", seen)
        return
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError):
        return
    if tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta:
        yield path, tensor


def _walk(owner: Any, path: str, seen: set[int], objects: list, depth: int) -> None:
    for name, value in _members(owner, path) if depth <= _DEEPEST else ():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            seen.update(map(id, value.modules()))
        if not isinstance(value, _CONTAINERS):
            objects.append((name, value))
        _walk(value, name, seen, objects, depth + 1)


def _members(owner: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, _CONTAINERS):
        if len(owner) > _LONGEST:
            return
        pairs = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for index, (key, value) in enumerate(list(pairs)):
            if not _is_leaf(type(value)):  # an object's repr may differ between ranks
                name = repr(key) if isinstance(key, (int, str)) else index
                yield f"{path}[{name}]", value
    elif isinstance(owner, nn.Module):
        for name, module in owner.named_modules():
            for attribute, value in list(vars(module).items()):
                if attribute not in _OF_MODULES and not _is_leaf(type(value)):
                    yield ".".join(filter(None, (path, name, attribute))), value
    elif not isinstance(owner, torch.optim.Optimizer):
        attributes = getattr(owner, "__dict__", None)
        for attribute, value in list(attributes.items()) if isinstance(attributes, dict) else ():
            if not _is_leaf(type(value)):
                yield f"{path}.{attribute}" if path else attribute, value


@lru_cache(maxsize=4096)
def _is_leaf(kind: type) -> bool:
    """Return whether nothing that is trained is in objects of this class. So it is with ours, and
    with torch's that have no state, such as the groups that FSDP keeps in its modules.
    """
    if issubclass(kind, _LEAVES):
        return True
    module, stateful = str(kind.__module__), hasattr(kind, "state_dict")
    return module.startswith(_OURS) or (module.startswith("torch.") and not stateful)
