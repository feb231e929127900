"""Proof that what an optimizer first steps with is the mean of the ranks' own gradients.

A sum of elements is linear: of the mean gradient it is the mean of the ranks' sums. Two numbers for
each parameter are compared, in one step of each optimizer; afterwards nothing watches.

It sees what averages, not what was computed: a loss that one rank doubles has a mean, too.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import fsdp

_ROUNDING = 1e-5
"""The rounding of a sum of gradients in 32 bits, relative to the sum of their magnitudes."""
_SENT_AS = {"fp16": torch.float16, "bf16": torch.bfloat16}
NOT_FINITE = "mean not proven: overflow"
"""Why nothing is proven in this step, as later steps may."""
_ALL_ZERO = "mean not proven: all zero"
_Named = list[tuple[str, torch.Tensor]]


def watch(algo: Any, optimizer: torch.optim.Optimizer, comm: str) -> GradientMeans:
    """Watch the gradients of what `optimizer` updates; `comm`: our option of that name."""
    names = {id(parameter): name for name, parameter in host_algo.named_parameters(algo)}
    names.update((id(tensor), name) for name, tensor in host_algo.outside_nets(algo))
    named = [
        (names[id(parameter)], parameter)
        for parameter in host_algo.held_by(optimizer)
        if parameter.requires_grad
    ]
    if any(fsdp.is_sharded(parameter) for _, parameter in named):
        return ShardedMeans(algo, [pair for pair in named if fsdp.is_sharded(pair[1])])
    return GradientMeans(named, _SENT_AS.get(comm))


class GradientMeans:
    """Sums each gradient on this rank before it is averaged, and after.

    `named`: parameters with their names; `sent_as`: the type that they are sent in, if not theirs.
    """

    averaged_by = "DDP"

    def __init__(self, named: _Named, sent_as: torch.dtype | None = None) -> None:
        self._named, self._sent_as = named, sent_as
        self._own = [torch.zeros(2, dtype=torch.float64)] * len(named)
        """The sum of each of this rank's gradients, and that of its magnitudes."""
        self._reduced = list(self._own)
        """The same sums of each averaged gradient, after the last backward pass."""
        self._in_pass = False
        self._undo = ExitStack()
        for index, (_, parameter) in enumerate(named):
            self._watch(index, parameter)

    def _watch(self, index: int, parameter: torch.Tensor) -> None:
        hook = partial(self._add_own, index)
        self._undo.callback(parameter.register_hook(hook).remove)

    def _add_own(self, index: int, gradient: torch.Tensor) -> None:
        """Note `gradient` before a backward pass adds it to what the parameter has."""
        if not self._in_pass:
            self._in_pass = True
            self._before = [_identity(parameter.grad) for _, parameter in self._named]
            self._sums = [_sums_of(parameter) for _, parameter in self._named]
            # DDP writes averages in such a callback, which may be queued after this one.
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._end_pass))
        self._sums[index] = self._sums[index] + _sums(gradient)

    def _end_pass(self) -> None:
        """Notes what the pass has changed: torch.autograd.grad changes nothing."""
        self._in_pass = False
        for index, (_, parameter) in enumerate(self._named):
            if _identity(parameter.grad) != self._before[index]:
                self._own[index], self._reduced[index] = self._sums[index], _sums_of(parameter)

    def read_again(self, parameters: list[torch.Tensor]) -> None:
        """Read the averages of `parameters`, which were made after the backward pass."""
        places = {id(parameter): index for index, (_, parameter) in enumerate(self._named)}
        for parameter in parameters:
            if id(parameter) in places:
                self._reduced[places[id(parameter)]] = _sums_of(parameter)

    def stop(self) -> None:
        """Takes the hooks away again."""
        self._undo.close()

    def compare(self) -> tuple[str | None, list[str]]:
        """Collective, before the step: returns why nothing is proven, or None, and complaints."""
        local, reduced = (_on_cpu(sums) for sums in (self._own, self._reduced))
        return self._compared(reduced[:, 0], group.sum_over_ranks(local))

    def _compared(
        self, reduced: torch.Tensor, totals: torch.Tensor
    ) -> tuple[str | None, list[str]]:
        """`reduced`: the sum of each averaged gradient; `totals`: both sums, added over ranks."""
        ranks = group.world_size()
        means, magnitudes = (totals / ranks).T
        if not bool(torch.isfinite(totals).all()):
            return NOT_FINITE, []
        if not len(self._named) or not bool(magnitudes.any()):
            return _ALL_ZERO, []
        allowed = torch.stack([self._allowed(parameter) for _, parameter in self._named])
        wrong = ~((reduced - means).abs() <= allowed[:, 0] * magnitudes + allowed[:, 1])
        for index in wrong.nonzero().flatten().tolist()[:1]:
            return None, [
                f"the gradient of {self._named[index][0]}, reduced by {self.averaged_by}, is not "
                f"the mean of the ranks' gradients ({int(wrong.sum())} of {len(wrong)} are not): "
                f"its elements sum to {reduced[index]:.6g}, the mean over {ranks} ranks to "
                f"{means[index]:.6g}. Averaging was changed (a hook, a divide factor, a "
                "sync), gradients were changed by hand before it, or the backend adds wrongly; "
                "leave averaging to robomimic-ddp, and clip by torch.nn.utils.clip_grad_norm_."
            ]
        return None, []

    def _allowed(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return what rounding may change, relative and absolute, when ranks' parts are added."""
        kinds = [parameter.dtype, self._sent_as or parameter.dtype]
        infos = [torch.finfo(kind) for kind in kinds]
        ranks = group.world_size()
        relative = max(info.eps for info in infos) * (2 + math.sqrt(ranks))
        smallest = max(info.tiny * info.eps for info in infos)
        absolute = parameter.numel() * ranks * smallest
        return torch.tensor([max(relative, _ROUNDING), absolute], dtype=torch.float64)


class ShardedMeans(GradientMeans):
    """GradientMeans under FSDP, in one step: each averaged gradient is in parts on the ranks."""

    averaged_by = "FSDP"

    def __init__(self, algo: Any, named: _Named) -> None:
        super().__init__(named)
        device = named[0][1].device_mesh.device_type
        self._of_all = torch.zeros(len(named), 2, dtype=torch.float64, device=device)
        self._of_parts = torch.zeros_like(self._of_all[:, 0])
        self._watched: set[int] = set()
        places = {id(parameter): index for index, (_, parameter) in enumerate(named)}
        for unit in filter(fsdp.is_unit, (module for _, module in host_algo.named_modules(algo))):
            slots = [
                (owner, name, places[id(parameter)])
                for owner in unit.modules()
                for name, parameter in owner._parameters.items()
                if id(parameter) in places
            ]
            gathered = partial(self._watch_gathered, slots)
            self._undo.callback(unit.register_forward_pre_hook(gathered).remove)

    def _watch(self, index: int, parameter: torch.Tensor) -> None:
        hook = partial(self._add_reduced, index)
        self._undo.callback(parameter.register_post_accumulate_grad_hook(hook).remove)

    def _watch_gathered(self, slots: list[tuple[nn.Module, str, int]], *_: Any) -> None:
        """In a unit's forward, after FSDP's hook: whole are the parameters that it gathered."""
        for owner, name, index in slots:
            gathered = owner._parameters[name]
            if not fsdp.is_sharded(gathered) and index not in self._watched:
                self._watched.add(index)
                hook = partial(self._add_own, index)
                self._undo.callback(gathered.register_hook(hook).remove)

    def _add_own(self, index: int, gradient: torch.Tensor) -> None:
        self._of_all[index] += _sums(gradient)

    def _add_reduced(self, index: int, parameter: torch.Tensor) -> None:
        shard = fsdp.local(parameter.grad)
        if shard.device != self._of_parts.device:  # offloaded, and perhaps still on its way
            getattr(torch, self._of_parts.device.type).current_stream().synchronize()
        # Micro-batches are added up in the gradient.
        self._of_parts[index] = shard.double().sum()

    def compare(self) -> tuple[str | None, list[str]]:
        """Collective, once, after the backward pass."""
        fsdp.sum_over_shards(self._of_parts, [parameter for _, parameter in self._named])
        total = group.sum_over_ranks(self._of_all)
        return self._compared(self._of_parts.cpu(), total.cpu())


def _identity(gradient: torch.Tensor | None) -> tuple | None:
    return None if gradient is None else (gradient.data_ptr(), gradient._version)


def _sums_of(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros(2, dtype=torch.float64, device=parameter.device)
    return _sums(parameter.grad)


def _sums(gradient: torch.Tensor) -> torch.Tensor:
    """float64 [2]: the sum of the elements, and of their magnitudes."""
    wide = gradient.detach().double()
    return torch.stack([wide.sum(), wide.abs().sum()])


def _on_cpu(sums: list[torch.Tensor]) -> torch.Tensor:
    """[N, 2], by one transfer."""
    if not sums:
        return torch.zeros(0, 2, dtype=torch.float64)
    device = next((pair.device for pair in sums if pair.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([pair.to(device) for pair in sums]).cpu()
