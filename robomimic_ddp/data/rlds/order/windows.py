"""Windows of an episode: frames and actions of window i, as in robomimic's SequenceDataset.

With To = frame_stack and Tp = seq_length, the window at step i has the observations i-(To-1) .. i
and the actions i-(To-1) .. i+Tp-1, in all To-1+Tp of them. Outside the episode the edge is repeated
and the mask is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.order.pass_order import WINDOW_PICK, random_keys


@dataclass(frozen=True)
class WindowShape:
    """frame_stack (To), seq_length (Tp) and their padding, as in the host's `config.train`."""

    frame_stack: int
    seq_length: int
    pad_frame_stack: bool
    pad_seq_length: bool

    @property
    def actions(self) -> int:
        """Actions in a window: To - 1 + Tp."""
        return self.frame_stack - 1 + self.seq_length

    @property
    def first(self) -> int:
        """The step of an episode's window number 0."""
        return 0 if self.pad_frame_stack else self.frame_stack - 1

    def count(self, lengths: np.ndarray) -> np.ndarray:
        """Return the windows of episodes of `lengths` [E] steps; 0 if one is too short."""
        lost = self.first + (0 if self.pad_seq_length else self.seq_length - 1)
        return np.maximum(np.asarray(lengths, np.int64) - lost, 0)


def windows_per_pass(counts: np.ndarray, subsample_length: int | None) -> np.ndarray:
    """Return the windows of each episode in a pass: `counts` [E], or at most `subsample_length`."""
    return counts if not subsample_length else np.minimum(counts, subsample_length)


def pick_offsets(counts: np.ndarray, seed: int, pass_number: int) -> np.ndarray:
    """Return a number in [0, counts) per episode, int64 [E]; see `picked_windows`."""
    keys = random_keys(len(counts), seed, pass_number, WINDOW_PICK)
    return (keys % np.maximum(counts, 1).astype(np.uint64)).astype(np.int64)


def picked_windows(numbers: Any, count: Any, per_pass: Any, offset: Any) -> Any:
    """Return the windows of an episode with the `numbers` in a pass.

    The episode's `count` windows are divided into `per_pass` equal ranges, and `offset` picks one
    window of each: over all offsets every window is picked equally often, and none twice in a pass.
    The identity if per_pass == count.
    """
    return (numbers * count + offset) // per_pass


def window_indices(steps: Any, length: Any, shape: WindowShape) -> tuple[Any, ...]:
    """Return for windows at `steps` [N] of an episode of `length` steps the obs steps [N, To], the
    action steps [N, To-1+Tp] and their mask, True inside the episode.
    """
    acted = steps[:, None] - (shape.frame_stack - 1) + np.arange(shape.actions)[None]
    inside = (acted >= 0) & (acted < length)
    clipped = np.clip(acted, 0, length - 1)
    return clipped[:, : shape.frame_stack], clipped, inside
