"""BatchNorm that normalises with the samples of all ranks, as one process with all of them would.

DDP averages gradients only: each rank's layers take mean and variance of that rank's batch, so that
N ranks with batch B are N small batches. Here two small messages a layer, one forward and one
backward, make them one batch of N x B. On GPUs they are those of torch's `nn.SyncBatchNorm`, which
takes no other tensors; on the CPU the same arithmetic.

The messages travel in the default group, as DDP's buckets do: both are sent in the order in which
autograd runs the same graph on every rank, and gloo matches messages by that order.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.errors import PlanError


def install(model: Any, choice: str, nets: list, undo: ExitStack) -> str:
    """`ddp.sync_batchnorm`: "true" changes the class of the BatchNorm layers in `model`, until
    `undo` is closed; the plan's line, empty where there is nothing to say, as on one rank.

    `nets`: those that went through `api.parallel`. Raises PlanError where it cannot be had.
    """
    of_dp = any(parallel.is_parallel(net) and parallel.state_of(net).mode == "dp" for net in nets)
    if choice == "true" and of_dp:
        raise PlanError(
            "ddp.sync_batchnorm=true with ddp.mode=dp. Expected a process for each GPU: "
            "DataParallel's copies of a net share one process and no messages, so each would "
            "normalise with its own part of the batch. Start the job with torchrun, or leave "
            "ddp.sync_batchnorm at its default."
        )
    if choice == "false" or group.world_size() == 1:
        return ""
    layers = {
        name: module
        for name, module in host_algo.named_modules(model)
        if isinstance(module, _BatchNorm) and not hasattr(module, "process_group")
    }
    if choice == "auto":
        count = sum(module.training for module in layers.values())
        line = (
            f"\nBatchNorm: {count} layer(s) normalise with each rank's own samples, as in plain "
            "DDP; ddp.sync_batchnorm=true: with those of all ranks"
        )
        return line if count else ""
    for name, module in layers.items():
        if type(module) not in _OF_ALL_RANKS:
            raise PlanError(
                f"ddp.sync_batchnorm=true, but layer {name} is a {type(module).__name__}. Expected "
                f"torch's {', '.join(plain.__name__ for plain in _OF_ALL_RANKS)}: what another "
                "class computes is not known here, and it would normalise with each rank's own "
                "samples. Leave ddp.sync_batchnorm at its default, or use torch's class."
            )
    for module in layers.values():
        undo.callback(setattr, module, "__class__", type(module))
        module.__class__ = _OF_ALL_RANKS[type(module)]
    return f"\nBatchNorm: {len(layers)} layer(s) normalise with the samples of all ranks"


class _OfAllRanks(_BatchNorm):
    """What the classes below add to torch's. No `nn.SyncBatchNorm`: DDP refuses that on the CPU."""

    process_group = None
    """torch's name for the group; None: all ranks."""
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Collective in train(), without gradients too, since the running statistics count the
        batch all the same; in eval() a rank may run alone. [B, C, ...] -> the same shape.

        B may differ between ranks. Raises ValueError where all of them together have one value for
        each channel.
        """
        if not self.training or group.world_size() == 1:
            return super().forward(input)
        if input.device.type != "cpu":
            return nn.SyncBatchNorm.forward(self, input)
        self._check_input_dim(input)
        values = input.to(torch.promote_types(input.dtype, torch.float32))  # as torch does
        mean, variance, count = _statistics(values)
        if count == 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got 1 on all ranks together"
            )
        if self.track_running_stats:
            self._count_batch(mean, variance * count / (count - 1))
        scale = torch.rsqrt(variance + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        scale, shift = (
            factor.to(values).view(-1, *[1] * (input.dim() - 2)) for factor in (scale, shift)
        )
        return (values * scale + shift).to(input.dtype)

    @torch.no_grad()
    def _count_batch(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Takes a batch's mean and unbiased variance [C] into the running ones, as torch does."""
        factor = self.momentum or 0.0
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), factor)
        self.running_var.lerp_(variance.to(self.running_var), factor)


class SyncBatchNorm1d(_OfAllRanks, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all ranks."""


class SyncBatchNorm2d(_OfAllRanks, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all ranks."""


class SyncBatchNorm3d(_OfAllRanks, nn.BatchNorm3d):
    """`nn.BatchNorm3d` over all ranks."""


_OF_ALL_RANKS = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    nn.BatchNorm3d: SyncBatchNorm3d,
}
"""At module level, so that copies and pickles find the class."""


def _statistics(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Collective, and again in the backward pass where the input wants a gradient, as all ranks'
    then do: mean and biased variance [C] over all ranks, in fp64, and how many values each channel
    has; of equal bits on all ranks.

    Each rank sends its own mean, variance and count, which are then combined (Chan et al. 1979): no
    squares of large numbers are subtracted, and batches of any sizes weigh what they have.
    """
    channels, rest = values.shape[1], [0, *range(2, values.dim())]
    if values.numel():
        variance, mean = torch.var_mean(values, rest, correction=0)
    else:
        variance = mean = values.sum(rest)  # zeros, and this rank takes part in the backward pass
    table = torch.zeros(group.world_size(), 2 * channels + 1, dtype=torch.float64)
    table[group.rank(), :-1] = torch.cat([mean, variance]).double()
    table[group.rank(), -1] = values.numel() // channels
    means, variances, counts = _SumOverRanks.apply(table).split([channels, channels, 1], dim=1)
    count = counts.detach().sum()
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    return mean, variance, float(count)


class _SumOverRanks(torch.autograd.Function):
    """Sum over ranks, forward and backward: each rank's loss depends on every rank's values."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        """Collective."""
        return group.sum_over_ranks(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Collective."""
        return group.sum_over_ranks(gradient)
