"""The contact sheet: one image of a few episodes, with a row of frames for each camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robomimic_ddp.commands.inspect_data.survey import SHEET_FRAMES, Sample
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.errors import DataError

_FRAME_INCHES = 1.9


def draw(source: Source, sample: Sample, path: Path) -> None:
    """Draws the frames of `sample` into the PNG `path`. Raises DataError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(
            f"the contact sheet is drawn with matplotlib, which cannot be imported: {error}. "
            "Install "
            'the extra: pip install ".[plot]" in robomimic-ddp\'s checkout.'
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

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
        _row(line, f"episode {number}{text}", camera.rpartition("/")[2], frames)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _row(line: Any, episode: str, camera: str, frames: list) -> None:
    """The instruction is above the first frame, to the right."""
    for column, (axis, (step, frame)) in enumerate(zip(line, frames)):
        axis.imshow(frame)
        label = f"{episode}\n{camera}, step {step}" if column == 0 else f"step {step}"
        axis.set_title(label, fontsize=9, loc="left")


def _title(source: Source, sample: Sample) -> str:
    count = len(sample.frames)
    if not count:
        return f"{source.name}: no colour pictures"
    return f"{source.name}: the first {count} of the episodes read, {SHEET_FRAMES} steps of each"
