"""Saves the layout of DDP's gradient buckets, and restores it when a run is resumed.

DDP starts with buckets in the order of definition, and rebuilds them after its first backward pass
in the order in which gradients arrived. The position of a parameter in a bucket decides the order
in which an all-reduce adds the ranks' values, so on three or more ranks a resumed process would
differ from the uninterrupted run in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.monkeypatch import swapped


class ArrivalOrder:
    """Records the order in which `parameters` get their first gradients: `seen`, indices."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.seen: list[int] = []
        self._hooks = [
            parameter.register_hook(lambda _, index=index: self._note(index))
            for index, parameter in enumerate(parameters)
        ]
        self._wanted = len(parameters)

    def _note(self, index: int) -> None:
        if len(self.seen) < self._wanted and index not in self.seen:
            self.seen.append(index)

    @property
    def complete(self) -> bool:
        """Whether every parameter has had a gradient."""
        return len(self.seen) == self._wanted

    def release(self) -> None:
        """Removes the hooks. Must not be called in a backward pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def lay_out(
    parallel: DistributedDataParallel, parameters: Sequence[nn.Parameter], order: Sequence[int]
) -> None:
    """Collective: makes a new DDP object rebuild its buckets, at its next forward, as if gradients
    had arrived in `order` (indices into `parameters`).

    Runs one backward pass of zeros, which DDP takes for its first.
    """

    def stand_in(*_: torch.Tensor) -> torch.Tensor:
        # autograd starts with the newest node
        zeros = [parameters[index].sum() * 0 for index in reversed(order)]
        return torch.stack(zeros).sum()

    with torch.enable_grad(), swapped(parallel.module, "forward", stand_in):
        parallel(torch.zeros(1)).backward()
    for parameter in parameters:
        parameter.grad = None


def can_be_laid_out(parallel: nn.Module) -> bool:
    """Return whether DDP rebuilds its buckets: not with find_unused_parameters. A static graph is
    excluded, since it records its first backward pass.
    """
    return isinstance(parallel, DistributedDataParallel) and not (
        parallel.find_unused_parameters or parallel.static_graph
    )
