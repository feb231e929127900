"""The layout of DDP's gradient buckets: seen in a process's first backward pass, repeated in the
process that resumes.

DDP begins with buckets in the order of definition, and lays them out anew, in the order in which
gradients arrived, after its first backward pass. Where a parameter lies in a bucket decides in
which order an all-reduce adds the ranks' values, so a resumed process, which begins again with the
first layout, would part from the uninterrupted run in last bits on three ranks and more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.swapped import swapped


class ArrivalOrder:
    """Notes in which order `parameters` get their first gradients: `seen`, indices."""

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
        """Takes the hooks away. Not to be called within a backward pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def lay_out(
    parallel: DistributedDataParallel, parameters: Sequence[nn.Parameter], order: Sequence[int]
) -> None:
    """Collective: makes a new DDP object put its buckets, at its next forward, where a process that
    saw gradients arrive in `order` (indices into `parameters`) has them.

    One backward pass of zeros, which DDP takes for its first: nothing of it stays.
    """

    def stand_in(*_: torch.Tensor) -> torch.Tensor:
        # autograd begins with what was made last
        zeros = [parameters[index].sum() * 0 for index in reversed(order)]
        return torch.stack(zeros).sum()

    with torch.enable_grad(), swapped(parallel.module, "forward", stand_in):
        parallel(torch.zeros(1)).backward()
    for parameter in parameters:
        parameter.grad = None


def can_be_laid_out(parallel: nn.Module) -> bool:
    """Whether DDP takes the order of arrival at all: not where it looks for unused parameters; and
    not with a static graph, since it remembers what its first backward pass did.
    """
    return isinstance(parallel, DistributedDataParallel) and not (
        parallel.find_unused_parameters or parallel.static_graph
    )
