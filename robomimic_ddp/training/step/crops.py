"""Random crops of images on a GPU without synchronisation.

robomimic's CropRandomizer reads four checks back and copies four small unpinned tensors: eight
synchronisations for every camera. Here the same numbers are drawn, corners are computed on the CPU,
and copied to the GPU at once, from pinned memory. A compiled net draws them on the GPU, from the
GPU's generator: its graph has no break, and CUDA graphs draw again at each replay.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.training.step import backprop, pinned_batches

NAME = "sample_random_image_crops"
KNOWN = {
    NAME: {"594b67b20657821c", "a8b9b583ccbacb0a"},
    "crop_image_from_indices": {"1e66ae41dadb50ab", "6366f2e00616d7ba"},
}
"""Digests (`backprop.digest`) of the host functions that `sample` replaces. The second is of the
same text in Python 3.9 and 3.10, which write parentheses around a tuple.
"""


def install(model: Any, undo: ExitStack) -> bool:
    """Until `undo` is closed, `sample` replaces the host's crops; False if its function differs."""
    package = type(model).__module__.partition(".")[0]
    module = sys.modules.get(f"{package}.utils.obs_utils")
    hosts = {name: getattr(module, name, None) for name in KNOWN}
    if not all(backprop.stands_for(host, KNOWN[name]) for name, host in hosts.items()):
        return False
    undo.enter_context(swapped(module, NAME, sample))
    return True


def sample(
    images: torch.Tensor, crop_height: int, crop_width: int, num_crops: int, pos_enc: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand for the host's function: images [..., C, H, W] -> (crops [..., N, C, h, w], corners
    int64 [..., N, 2]).

    pos_enc: adds two channels, the position of a pixel in the image, in [0, 1).
    """
    height, width = images.shape[-2:]
    device, leading = images.device, images.shape[:-3]
    if pos_enc:
        rows = torch.arange(height, device=device).float() / float(height)
        columns = torch.arange(width, device=device).float() / float(width)
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        images = torch.cat((images, places.expand(*leading, -1, -1, -1)), dim=-3)
    most = height - crop_height, width - crop_width
    if _is_compiling():
        corners = _drawn((*leading, num_crops), *most, device)
    else:
        corners = _drawn((*leading, num_crops), *most)
        if device.type != "cpu":
            corners = pinned_batches.sent(corners, device)
    top, left = corners[..., 0, None, None], corners[..., 1, None, None]
    down = torch.arange(crop_height, device=device)[:, None]
    across = torch.arange(crop_width, device=device)
    pixels = ((top + down) * width + left + across).flatten(-2)  # [..., N, h * w]
    channels = images.shape[-3]
    pixels = pixels.unsqueeze(-2).expand(*leading, num_crops, channels, -1)
    source = images.flatten(-2).unsqueeze(-3).expand(*leading, num_crops, channels, -1)
    crops = torch.gather(source, -1, pixels)
    return crops.unflatten(-1, (crop_height, crop_width)), corners


def _drawn(
    shape: tuple[int, ...], most_rows: int, most_columns: int, device: torch.device | None = None
) -> torch.Tensor:
    """Corners, on the CPU from the same random numbers as the host's."""
    rows = (most_rows * torch.rand(*shape, device=device)).long()
    columns = (most_columns * torch.rand(*shape, device=device)).long()
    return torch.stack((rows, columns), dim=-1)


def _is_compiling() -> bool:
    """Return whether torch.compile traces this call; before torch 2.3, which has no such function,
    nothing here is compiled.
    """
    compiler = getattr(torch, "compiler", None)
    return hasattr(compiler, "is_compiling") and torch.compiler.is_compiling()
