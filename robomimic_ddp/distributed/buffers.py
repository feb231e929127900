"""Which nets hold buffers that training may change, so that DDP must keep them equal."""

from __future__ import annotations

from torch import nn

_CONSTANT = {
    ("models.base_nets", "SpatialSoftmax"): {"temperature", "pos_x", "pos_y"},
    ("models.transformers", "CausalSelfAttention"): {"mask"},
}
"""Of robomimic: the end of a module's name and a class, whose forward only reads these buffers."""


def may_change(net: nn.Module) -> bool:
    """Whether a training forward of `net` may write to one of its buffers, as BatchNorm's does.

    What is not known to leave its buffers alone may write to them; the same on all ranks.
    """
    return any(_own(part) - _constant(part) for part in net.modules())


def _own(part: nn.Module) -> set[str]:
    return {name for name, buffer in part.named_buffers(recurse=False) if buffer is not None}


def _constant(part: nn.Module) -> set[str]:
    for (module, name), buffers in _CONSTANT.items():
        if type(part).__name__ == name and type(part).__module__.endswith(module):
            return buffers
    return set()
