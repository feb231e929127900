"""Draws the rows of `bench data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import figures
from robomimic_ddp.errors import ConfigError

COLOURS = {
    "ours": "#2a6fdb",
    "ours_fast_decode": "#2f9e5f",
    "host_shaped": "#e07b39",
    "skipping": "#c23b3b",
    "jpeg_limit": "#5b6b7a",
    "octo": "#8250c4",
}
PANELS = (
    ("frames_per_second", "frames/s of one rank"),
    ("cpu_seconds_per_1000_frames", "CPU seconds per 1000 frames"),
)


def plot(rows: Sequence[dict[str, Any]], output: str) -> None:
    """A line of panels for each size, over the numbers of ranks. Raises DataError, ConfigError."""
    plt = figures.pyplot()

    sizes = list(dict.fromkeys(_size(row) for row in rows))
    figure, grid = plt.subplots(
        len(sizes), 2, figsize=(10, 3.6 * len(sizes)), squeeze=False, constrained_layout=True
    )
    for size, line in zip(sizes, grid):
        for axes, (column, title) in zip(line, PANELS):
            _panel(axes, [row for row in rows if _size(row) == size], column)
            axes.set_title(f"{title}, {size}", fontsize=9)
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {output} cannot be written: {error}.") from error
    finally:
        plt.close(figure)


def _panel(axes: Any, rows: Sequence[dict[str, Any]], column: str) -> None:
    for loader in dict.fromkeys(row["loader"] for row in rows):
        own = [row for row in rows if row["loader"] == loader]
        worlds, values = [row["world"] for row in own], [row[column] for row in own]
        low, high = zip(*(row[f"{column}_range"] for row in own))
        colour = COLOURS.get(loader)
        axes.plot(worlds, values, "o-", color=colour, label=loader, markersize=4)
        axes.fill_between(worlds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    worlds = sorted({row["world"] for row in rows})
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.set_xlabel("ranks of the job")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _size(row: dict[str, Any]) -> str:
    stored, target = ("x".join(map(str, row[name])) for name in ("stored", "target"))
    return f"{stored} to {target}, {row['filter']}"
