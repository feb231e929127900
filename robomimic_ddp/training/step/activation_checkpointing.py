"""Activation checkpointing of image encoders: what a camera's encoder computes is dropped after the
forward and computed again in the backward pass, camera by camera.

Random numbers inside are drawn again from the same state, and running statistics (BatchNorm) count
a batch once, so bits stay what they were.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from robomimic_ddp.config.swapped import swapped
from robomimic_ddp.training.step import calls

IMAGE_LAYERS = (nn.Conv2d, nn.ConvTranspose2d)
_CONTAINERS = (nn.ModuleDict, nn.ModuleList)
_COUNT = "num_batches_tracked"


def install(nets: list, undo: ExitStack) -> list:
    """Checkpoints every camera's encoder in `nets` until `undo` is closed; the nets that have one.

    An encoder of a camera is the outermost module that holds two-dimensional convolutions and no
    dictionary or list of such modules.
    """
    found = []
    for net in nets:
        parts = _encoders(net)
        for part in parts:
            call = partial(_checkpointed, part)
            calls.replace(part, call, undo)
        if parts:
            found.append(net)
    return found


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
    """For the second forward: the first one has taken the batch into the running statistics."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self._undo = module, ExitStack()

    def __enter__(self) -> None:
        for part in self.module.modules():
            if isinstance(part, _BatchNorm) and part.track_running_stats:
                # Not track_running_stats=False: the backward pass wants the tensors of the first.
                self._undo.enter_context(swapped(part, "momentum", 0.0))
                count = part._buffers[_COUNT]
                self._undo.callback(part._buffers.__setitem__, _COUNT, count)
                part._buffers[_COUNT] = count.clone()  # torch's SyncBatchNorm wants to count

    def __exit__(self, *_: Any) -> None:
        self._undo.close()


def _encoders(module: nn.Module) -> list[nn.Module]:
    if not has_image_layers(module):
        return []
    held = [one for one in module.modules() if isinstance(one, _CONTAINERS)]
    if any(has_image_layers(one) for one in held):
        found = [part for child in module.children() for part in _encoders(child)]
        return list(dict.fromkeys(found))  # cameras may share an encoder
    return [module]


def has_image_layers(module: nn.Module) -> bool:
    """Whether `module` holds two-dimensional convolutions."""
    return any(isinstance(one, IMAGE_LAYERS) for one in module.modules())
