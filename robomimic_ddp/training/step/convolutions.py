"""One-dimensional convolutions over a few steps, as one matrix product (CPU).

The diffusion UNet's deep layers have millions of weights and sequences of four or eight steps.
oneDNN reorders all weights for every such call, forward and backward, which takes longer than the
arithmetic: on one core, 1024 channels, kernel 5, batch 16 x 4 steps: 91 ms, against 33 ms here.
Sums are in another order, so results differ by about 1e-6 of their size.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import nn

LEAST_WEIGHTS = 1_000_000
WEIGHTS_PER_ROW = 4096
"""From this number of weights on, and for each output step of the batch, the product is faster (for
batches of 16 and 64, 64 to 1024 channels, 4 to 16 steps; docs/decisions.md).
"""


def install(nets: list, undo: ExitStack) -> bool:
    """Changes the class of convolutions on a CPU that may gain by it; False if there are none."""
    convolutions = [
        module
        for net in nets
        for module in net.modules()
        if type(module) is nn.Conv1d and _may_gain(module)
    ]
    for module in convolutions:
        module.__class__ = MatrixConv1d
        undo.callback(setattr, module, "__class__", nn.Conv1d)
    return bool(convolutions)


def _may_gain(convolution: nn.Conv1d) -> bool:
    return (
        convolution.weight.device.type == "cpu"
        and convolution.weight.numel() >= LEAST_WEIGHTS
        and convolution.groups == 1
        and convolution.dilation == (1,)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
    )


class MatrixConv1d(nn.Conv1d):
    """`nn.Conv1d` as a matrix product; a class, so that copies use their weights."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[B, C, L] -> [B, C', L'], as nn.Conv1d."""
        (width,), (stride,), (padding,) = self.kernel_size, self.stride, self.padding
        if input.dim() != 3 or input.device.type != "cpu":
            return super().forward(input)
        batch, _, length = input.shape
        steps = (length + 2 * padding - width) // stride + 1
        if self.weight.numel() < WEIGHTS_PER_ROW * batch * steps:
            return super().forward(input)
        padded = F.pad(input, (padding, padding))
        pieces = padded.unfold(2, width, stride).permute(0, 2, 1, 3).reshape(batch * steps, -1)
        result = pieces @ self.weight.flatten(1).t()
        if self.bias is not None:
            result = result + self.bias
        return result.view(batch, steps, self.out_channels).permute(0, 2, 1)
