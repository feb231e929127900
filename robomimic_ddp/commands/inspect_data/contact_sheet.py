"""The contact sheet: one image of a few episodes, with a row of frames for each camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robomimic_ddp.commands import figures
from robomimic_ddp.commands.inspect_data.survey import SHEET_FRAMES, Sample
from robomimic_ddp.data.rlds.index.source import Source

_FRAME_INCHES, _FONT = 1.9, 9


def draw(source: Source, sample: Sample, path: Path) -> None:
    """Draws the frames of `sample` into the PNG `path`. Raises DataError without matplotlib."""
    plt = figures.pyplot()
    rows = [
        (number, camera, frames)
        for number, episode in enumerate(sample.frames)
        for camera, frames in episode.items()
    ]
    height, width = rows[0][2][0][1].shape[:2] if rows else (1, 1)
    tall = _FRAME_INCHES * min(1.5, height / width) + 0.5
    figure, axes = plt.subplots(
        max(1, len(rows)),
        SHEET_FRAMES,
        figsize=(_FRAME_INCHES * SHEET_FRAMES + 0.4, tall * max(1, len(rows)) + 0.6),
        squeeze=False,
        constrained_layout=True,
    )
    figure.suptitle(_title(source, sample))
    for axis in axes.flat:
        axis.set_axis_off()
    for line, (number, camera, frames) in zip(axes, rows):
        first = camera == next(iter(sample.frames[number]))
        text = f": {sample.instructions[number]}" if first and sample.instructions[number] else ""
        _row(line, f"episode {number}, {camera.rpartition('/')[2]}{text}", frames)
    figures.save(figure, str(path))


def _row(line: Any, name: str, frames: list) -> None:
    """`name` is above the first frame's step, and may reach above the frames to its right."""
    for axis, (step, frame) in zip(line, frames):
        axis.imshow(frame)
        axis.set_title(f"\nstep {step}", fontsize=_FONT, loc="left")  # a line free for the name
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "xytext": (0, 2 * _FONT)}
    named = line[0].annotate(name, (0, 1), fontsize=_FONT, weight="bold", **place)
    named.set_in_layout(False)  # a long one would push the next frame away


def _title(source: Source, sample: Sample) -> str:
    count = len(sample.frames)
    if not count:
        return f"{source.name}: no colour pictures"
    return f"{source.name}: the first {count} of the episodes read, {SHEET_FRAMES} steps of each"
