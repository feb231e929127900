"""Numbers that a device has still to compute, read when they are there.

`.item()` waits for a GPU to do all that it was given. Here it starts a copy to pinned memory, and
the number is waited for where somebody looks at it: one step later.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, Callable

import torch

_ALONE: dict[str, Callable] = {
    **{kind.__name__: kind for kind in (abs, bool, float, format, hash, int, repr, round, str)},
    **{kind.__name__: kind for kind in (math.ceil, math.floor, math.trunc)},
    **{"neg": operator.neg, "pos": operator.pos},
}
_OF_TWO: dict[str, Callable] = {
    **{kind.__name__: kind for kind in (operator.add, operator.floordiv, operator.mod)},
    **{kind.__name__: kind for kind in (operator.mul, operator.sub, operator.truediv)},
    **{"divmod": divmod, "pow": pow},
}
_COMPARING: dict[str, Callable] = {
    kind.__name__: kind
    for kind in (operator.eq, operator.ge, operator.gt, operator.le, operator.lt, operator.ne)
}


class Number:
    """Stands for the number that `read` gives once it is asked for: any use of it asks."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read: Callable[[], Any] | None = read
        self._value: Any = None

    def value(self) -> Any:
        """The plain number; the first call may wait for the device."""
        if self._read is not None:
            self._value, self._read = self._read(), None
        return self._value


def _asking(function: Callable) -> Callable:
    def method(self: Number, *others: Any) -> Any:
        return function(self.value(), *map(plain, others))

    return method


def _turned(function: Callable) -> Callable:
    return lambda value, other: function(other, value)


for _name, _function in {**_ALONE, **_OF_TWO, **_COMPARING}.items():
    setattr(Number, f"__{_name}__", _asking(_function))
for _name, _function in _OF_TWO.items():
    setattr(Number, f"__r{_name}__", _asking(_turned(_function)))


class _Tensor(torch.Tensor):
    """Whose `item()`, and that of what is computed from it, is a Number."""

    def item(self) -> Any:
        return number(self.as_subclass(torch.Tensor))


def pays(device: torch.device | str) -> bool:
    """Whether reading at once would make `device` wait."""
    return torch.device(device).type == "cuda"


def number(tensor: torch.Tensor) -> Number:
    """The number in `tensor`, which has one element; its present value, whatever is written to the
    tensor later.
    """
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return Number(tensor.clone().item)
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    there.copy_(tensor, non_blocking=True)
    copied = torch.cuda.current_stream(tensor.device).record_event()

    def read() -> Any:
        copied.synchronize()
        return there.item()

    return Number(read)


def plain(value: Any) -> Any:
    """`value` itself, or what a Number stands for."""
    return value.value() if isinstance(value, Number) else value


def reading_late(info: Any) -> Any:
    """A copy of a nest of dicts, lists and tuples, whose tensors give Numbers by `item()`."""
    if isinstance(info, torch.Tensor):
        return info.detach().as_subclass(_Tensor)
    if isinstance(info, dict):
        made = copy.copy(info)
        made.update((key, reading_late(value)) for key, value in info.items())
        return made
    if isinstance(info, list):
        made = copy.copy(info)
        made[:] = map(reading_late, info)
        return made
    return tuple(map(reading_late, info)) if type(info) is tuple else info


class Log(dict):
    """A step's log, some of whose values may be Numbers; `settle` makes them plain, and is called
    before anybody reads.
    """

    settle: Callable[[], None] | None = None


def _reading(name: str) -> Callable:
    plainly = getattr(dict, name)

    def method(self: Log, *args: Any, **kwargs: Any) -> Any:
        settle, self.settle = self.settle, None
        if settle is not None:
            settle()
        return plainly(self, *args, **kwargs)

    return method


for _name in (
    *("__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__repr__"),
    *("__or__", "__reversed__", "__ror__"),
    *("copy", "get", "items", "keys", "pop", "popitem", "setdefault", "values"),
):
    setattr(Log, _name, _reading(_name))
