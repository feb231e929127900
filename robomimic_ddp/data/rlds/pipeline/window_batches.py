"""Windows of encoded frames, and batches of them, decoded and normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from robomimic_ddp.data.rlds.order.windows import picked_windows, window_indices
from robomimic_ddp.data.rlds.pipeline.images import RecordError, decode_resized
from robomimic_ddp.data.rlds.pipeline.settings import WindowSettings
from robomimic_ddp.data.rlds.pipeline.shared import OBS, Pool, place, views
from robomimic_ddp.data.rlds.schema.actions import action_vectors, part_values


class Window(NamedTuple):
    """A window in the shuffle buffer. numbers: states, raw actions and mask, float32 as bytes;
    frames: encoded, camera by camera. Bytes alone: little memory, and nothing to collect.
    """

    numbers: bytes
    language: bytes
    frames: tuple[bytes, ...]


def windows_of(settings: WindowSettings, serialized: bytes, record: Any, numbers: Any) -> list:
    """Return the Windows `numbers` [N] of an episode, with its row of `Block.records`."""
    _, _, per_pass, count, pick, _ = record
    shape, fields = settings.shape, settings.fields
    episode = settings.parse(serialized)
    actions = action_vectors(episode, fields.actions)
    states = [part_values(episode, part) for part in fields.low_dim.values()]
    frames = [episode[place] for place in fields.images.values()]
    texts = episode[fields.language] if fields.language else [b""] * len(actions)
    steps = picked_windows(numbers, count, per_pass, pick) + shape.first
    seen, acted, inside = window_indices(steps, len(actions), shape)
    parts = [*(values[seen] for values in states), actions[acted], inside.astype(np.float32)]
    packed = np.concatenate([part.reshape(len(seen), -1) for part in parts], 1)
    return [
        Window(
            row.tobytes(),
            texts[row_steps[-1]],
            tuple(camera[step] for camera in frames for step in row_steps),
        )
        for row, row_steps in zip(packed, seen.tolist())
    ]


class Batch:
    """A batch of `windows` in `memory` of `pool`, complete once `decode` has filled in all
    `frames`: the arrays of `layout`, see `RLDSLoader`. language: bytes of each window; missing:
    frames to decode.
    """

    def __init__(
        self, settings: WindowSettings, windows: Sequence[Window], index: Any, pool: Pool
    ) -> None:
        self._settings, self._index = settings, index
        shape, fields = settings.shape, settings.fields
        count, stack = len(windows), shape.frame_stack
        states = {OBS + key: (stack, *of_frame) for key, of_frame in fields.low_dim_shapes.items()}
        parts = {**states, "actions": (shape.actions, fields.action_size)}
        pictures = (count, stack, *settings.size, 3)
        arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
            **{name: (np.float32, (count, *of_window)) for name, of_window in parts.items()},
            **{OBS + key: (np.uint8, pictures) for key in fields.images},
            "pad_mask": (np.bool_, (count, shape.actions)),
            "index": (np.int64, (count,)),
        }
        size, self.layout = place(arrays)
        self.memory = pool.take(size)
        filled = views(self.memory.bytes, self.layout)
        packed = np.frombuffer(b"".join(window.numbers for window in windows), np.float32)
        ends = np.cumsum([math.prod(of_window) for of_window in parts.values()])
        *numbers, mask = np.split(packed.reshape(count, -1), ends, 1)
        for name, values in zip(parts, numbers):
            filled[name][...] = values.reshape(filled[name].shape)
        actions = filled["actions"]
        actions -= settings.offset
        actions /= settings.scale
        np.clip(actions, -settings.limit, settings.limit, out=actions)
        filled["pad_mask"][...] = mask > 0
        filled["index"][...] = index
        self._cameras = [(key, filled[OBS + key]) for key in fields.images]
        self._frames = [window.frames for window in windows]
        self.frames = self.missing = len(self._cameras) * count * stack
        self.language = [window.language for window in windows]

    def decode(self, first: int, end: int) -> int:
        """Fill in the frames with the numbers [first, end); return how many. Raises RecordError."""
        settings = self._settings
        stack = settings.shape.frame_stack
        numbers = range(first, min(end, self.frames))
        for number in numbers:
            camera, place = divmod(number, len(self._frames) * stack)
            row, step = divmod(place, stack)
            key, pictures = self._cameras[camera]
            data = self._frames[row][camera * stack + step]
            try:
                decode_resized(data, settings.stored[key], settings.size, pictures[row, step])
            except RecordError as error:
                error.window, error.frame = self._index[row], (key, step)
                raise
        return len(numbers)
