"""The contact sheet: one image of a few episodes, with a row of frames for each camera."""

from __future__ import annotations

from pathlib import Path

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
    row_inches, count = _FRAME_INCHES * min(1.5, height / width) + 0.5, max(1, len(rows))
    figure, axes = plt.subplots(
        count,
        SHEET_FRAMES,
        figsize=(_FRAME_INCHES * SHEET_FRAMES + 0.4, row_inches * count + 0.6),
        squeeze=False,
        constrained_layout=True,
    )
    title = f"the first {len(sample.frames)} of the episodes read" if rows else "no colour pictures"
    figure.suptitle(f"{source.name}: {title}")
    for axis in axes.flat:
        axis.set_axis_off()
    for line, (number, camera, frames) in zip(axes, rows):
        for axis, (step, frame) in zip(line, frames):
            axis.imshow(frame)
            axis.set_title(f"\nstep {step}", fontsize=_FONT, loc="left")  # a line for the name
        text = f"episode {number}, {camera.rpartition('/')[2]}"
        if camera == next(iter(sample.frames[number])) and sample.instructions[number]:
            text += f": {sample.instructions[number]}"
        offset = {"xycoords": "axes fraction", "textcoords": "offset points"}
        name = line[0].annotate(
            text, (0, 1), xytext=(0, 2 * _FONT), fontsize=_FONT, weight="bold", **offset
        )
        name.set_in_layout(False)  # a long one would push the next frame away
    figures.save(figure, str(path))
