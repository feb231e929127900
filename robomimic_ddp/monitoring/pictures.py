"""Pictures for TensorBoard and W&B: the camera images of a run's first batch, and rollout videos.

The host's DataLogger draws images where it is given any, and hosts give it none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from robomimic_ddp.config import tree
from robomimic_ddp.monitoring.step_hooks import StepHook
from robomimic_ddp.terminal import warn

_SHOWN = 8
"""Samples of the batch, and frames of a video in TensorBoard."""
_COLOURS = (1, 3)
_LEAST_SIDE = 8


class Pictures(StepHook):
    """On the main rank: gives pictures to `logger`, a host's DataLogger that writes TensorBoard or
    W&B. skips_batch: the run is resumed, and has its first batch. What cannot be drawn is a
    warning: training continues.
    """

    place = "pictures"

    def __init__(self, logger: Any, skips_batch: bool) -> None:
        self.logger, self.drawn, self.epoch = logger, skips_batch, 0

    def batch(self, batch: Any) -> None:
        """Draws the first batch that it sees, a row of samples for each camera."""
        if self.drawn:
            return
        self.drawn = True
        obs = batch.get("obs") if isinstance(batch, Mapping) else None
        takes_images = "data_type" in inspect.signature(self.logger.record).parameters
        for name, row in rows(obs) if obs and takes_images else ():
            with _warned("the first batch"):  # hosts before 0.5 add no axis of samples
                self.logger.record(f"First_Batch/{name}", row[None], self.epoch, data_type="image")

    def videos(self, paths: Any, epoch: Any) -> None:
        """Gives W&B the rollout videos of `paths` (environment -> file, None without videos), and
        TensorBoard a row of their frames.
        """
        tensorboard = getattr(self.logger, "_tb_logger", None)
        wandb_logger = getattr(self.logger, "_wandb_logger", None)
        for name, path in (paths if isinstance(paths, Mapping) else {}).items():
            if wandb_logger is not None:
                with _warned(f"the video {path} for W&B"):
                    import wandb

                    wandb_logger.log({f"Rollout/Video/{name}": wandb.Video(str(path))}, step=epoch)
            if tensorboard is not None:
                with _warned(f"frames of {path} for TensorBoard"):
                    row = _row_of(_frames(path))
                    tag = f"Rollout/Video/{name}"
                    tensorboard.add_images(tag, row[None], epoch, dataformats="NHWC")


@contextmanager
def _warned(what: str) -> Iterator[None]:
    """For the block, an error is a line on stderr."""
    try:
        yield
    except Exception as error:
        warn(f"{what} could not be logged: {error}")


def rows(obs: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, uint8 [H, N x W, C]) of each camera of `obs`: the first frame of the first N
    samples. Images are uint8 [B, (T,) H, W, C], or floats from 0 to 1, [B, (T,) C, H, W].
    """
    for name, value in tree.named(obs, "/"):
        if not hasattr(value, "ndim") or value.ndim not in (4, 5):
            continue
        first = torch.as_tensor(value[:_SHOWN]).detach().cpu()
        first = first[:, 0] if first.ndim == 5 else first
        if first.dtype != torch.uint8:
            if first.shape[1] not in _COLOURS or not first.is_floating_point():
                continue
            first = (first.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        if first.shape[-1] in _COLOURS and min(first.shape[1:3]) >= _LEAST_SIDE:
            yield name, _row_of(first.numpy())


def _row_of(images: np.ndarray) -> np.ndarray:
    """[N, H, W, C] side by side."""
    return np.concatenate(list(images), axis=1)


def _frames(path: Any) -> np.ndarray:
    """Some frames of the video [N, H, W, C], read with what hosts write it with."""
    import imageio

    frames, interval = [], 1
    with imageio.get_reader(path) as reader:
        for number, frame in enumerate(reader):
            if number % interval == 0:
                frames.append(np.asarray(frame))
            if len(frames) == 2 * _SHOWN:  # a long video would fill the memory
                frames, interval = frames[::2], 2 * interval
    chosen = np.linspace(0, len(frames) - 1, min(_SHOWN, len(frames))).round().astype(int)
    return np.stack([frames[number] for number in chosen])
