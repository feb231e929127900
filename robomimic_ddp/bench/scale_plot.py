"""Draws the rows of `bench scale`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import figures
from robomimic_ddp.errors import ConfigError

COLOURS = ("#2a6fdb", "#e07b39", "#2f9e5f", "#c23b3b", "#5b6b7a")
PANELS = (
    ("weak_efficiency", "weak: the same batch on each GPU"),
    ("strong_efficiency", "strong: one batch over all GPUs"),
)


def plot(rows: Sequence[dict[str, Any]], names: dict[str, str], note: str, output: str) -> None:
    """Weak and strong efficiency over the number of GPUs. `names`: cluster -> for people; `note`:
    what the figure rests on. Raises DataError, ConfigError.
    """
    plt = figures.pyplot()

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, constrained_layout=True)
    modelled = [row for row in rows if row["kind"] == "modelled"]
    for axes, (column, title) in zip(panels, PANELS):
        for number, (cluster, name) in enumerate(names.items()):
            own = [row for row in modelled if row["cluster"] == cluster]
            points = [(row["world"], row[column]) for row in own if row[column] is not None]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(*zip(*points), "o-", color=colour, label=name, markersize=4)
        axes.set_title(f"{title} (modelled)", fontsize=10)
        axes.set_xscale("log", base=2)
        worlds = sorted({row["world"] for row in modelled})
        axes.set_xticks(worlds, [str(world) for world in worlds])
        axes.set_xlabel("GPUs")
        axes.set_ylim(0, 1.04)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("efficiency")
    panels[0].legend(fontsize=8, loc="lower left")
    figure.suptitle(note, fontsize=9)
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {output} cannot be written: {error}.") from error
    finally:
        plt.close(figure)
