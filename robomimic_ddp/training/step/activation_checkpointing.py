"""Activation checkpointing of image encoders: recomputes a camera's encoder in the backward pass.

Restores the random state for the second forward, and BatchNorm's running statistics count a batch
once, so results are bitwise the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.training.step import module_call

IMAGE_LAYERS = (nn.Conv2d, nn.ConvTranspose2d)
_CONTAINERS = (nn.ModuleDict, nn.ModuleList)
_COUNT = "num_batches_tracked"


def install(nets: list, undo: ExitStack) -> list:
    """Checkpoints every camera's encoder in `nets` until `undo` is closed; returns nets that have
    one.

    A camera's encoder is the outermost module with two-dimensional convolutions and without a
    ModuleDict or ModuleList of such modules.
    """
    encoders = []
    for net in nets:
        parts = _encoders(net)
        for part in parts:
            module_call.replace(part, partial(_checkpointed, part), undo)
        if parts:
            encoders.append(net)
    return encoders


def _checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), _StatisticsStandStill(module)

    return torch.utils.checkpoint.checkpoint(
        module._call_impl,
        *args,
        use_reentrant=False,
        preserve_rng_state=True,
        context_fn=contexts,
        **kwargs,
    )


class _StatisticsStandStill:
    """For the second forward: the running statistics already include the batch."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self._undo = module, ExitStack()

    def __enter__(self) -> None:
        for part in self.module.modules():
            if isinstance(part, _BatchNorm) and part.track_running_stats:
                # Not track_running_stats=False: the backward pass needs the tensors of the first.
                self._undo.enter_context(swapped(part, "momentum", 0.0))
                count = part._buffers[_COUNT]
                self._undo.callback(part._buffers.__setitem__, _COUNT, count)
                part._buffers[_COUNT] = count.clone()  # torch's SyncBatchNorm wants to count

    def __exit__(self, *_: Any) -> None:
        self._undo.close()


def _encoders(module: nn.Module) -> list[nn.Module]:
    if not has_image_layers(module):
        return []
    containers = [inner for inner in module.modules() if isinstance(inner, _CONTAINERS)]
    if any(has_image_layers(container) for container in containers):
        encoders = [part for child in module.children() for part in _encoders(child)]
        return list(dict.fromkeys(encoders))  # cameras may share an encoder
    return [module]


def has_image_layers(module: nn.Module) -> bool:
    """Return whether `module` has two-dimensional convolutions."""
    return any(isinstance(layer, IMAGE_LAYERS) for layer in module.modules())
