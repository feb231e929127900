"""The component `module.` that DataParallel and DDP add to the keys of a net."""

from __future__ import annotations

from typing import Any

from torch import nn


class ModuleKey(nn.Module):
    """Keeps a net under `module`, as DataParallel did in hosts whose checkpoints have that key."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def accept_any_layout(net: nn.Module) -> nn.Module:
    """Makes `load_state_dict` of `net`, or of a module that contains it, accept keys with or
    without the component `module.`, which DataParallel and DistributedDataParallel add. Returns
    `net`.
    """
    net._register_load_state_dict_pre_hook(_rename_to_layout, with_module=True)
    return net


def _rename_to_layout(module: nn.Module, state_dict: dict, prefix: str, *_: Any) -> None:
    """Renames, in place, the keys under `prefix` to the layout of `module`."""
    first = next((name for name, _ in module.named_parameters()), None)
    if first is None or prefix + first in state_dict:
        return  # the common case: averaged copies load every step
    expected = {prefix + name for name in module.state_dict(keep_vars=True)}
    present = [key for key in state_dict if key.startswith(prefix)]
    for key in present:
        rest = key[len(prefix) :]
        other = prefix + (
            rest[len("module.") :] if rest.startswith("module.") else "module." + rest
        )
        if other in expected:
            state_dict[other] = state_dict.pop(key)
