"""The demo's GIF: a policy before and after training, beside the loss."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from robomimic_ddp.commands import figures, plot
from robomimic_ddp.distributed.atomic_files import atomic_open
from scripts.demo.simulator import ReachSimulator

SHOWN = 4
"""Episodes in each panel, two in a row."""
TILE, GAP, BETWEEN, TITLE = (140, 124), 4, 16, 30
PANEL = (2 * TILE[0] + GAP, TITLE + 2 * TILE[1] + GAP)
CURVE = 230
"""Columns of the loss. All of it is as wide as a README: 2 x (PANEL + BETWEEN) + CURVE pixels."""
FRAME_MS, FIRST_FRAME_MS, LAST_FRAME_MS = 90, 700, 3000
COLOURS = 96
PAPER, INK, SUCCESS, FAILURE = (255, 255, 255), (31, 41, 55), (0, 114, 178), (213, 94, 0)
"""Anyone can tell blue from orange; a mark repeats it."""
TITLES = {"before": "before training", "after": "after training"}


class Film:
    """Pictures of one episode, one for each step."""

    def __init__(self, simulator: ReachSimulator) -> None:
        self.simulator = simulator
        self.pictures: list[Image.Image] = []
        self.step()

    def step(self) -> None:
        """Adds a picture of the present state."""
        self.pictures.append(self.simulator.portrait(*TILE))

    def frame(self, number: int) -> Image.Image:
        """The picture of a step; after the episode its last one, framed by its outcome."""
        if number < len(self.pictures):
            return self.pictures[number]
        last = self.pictures[-1].copy()
        draw, success = ImageDraw.Draw(last), self.simulator.success
        colour = SUCCESS if success else FAILURE
        draw.rectangle((0, 0, TILE[0] - 1, TILE[1] - 1), outline=colour, width=4)
        draw.rectangle((TILE[0] - 28, 0, TILE[0] - 1, 27), fill=colour)
        strokes = (
            [((6, 14), (12, 20), (22, 8))] if success else [((8, 8), (20, 20)), ((8, 20), (20, 8))]
        )
        for stroke in strokes:
            draw.line([(TILE[0] - 28 + x, y) for x, y in stroke], PAPER, 4, joint="curve")
        return last


def draw(
    films: Mapping[str, Sequence[Film]],
    rates: Mapping[str, float],
    losses: Sequence[float],
    path: Path,
) -> None:
    """Writes the GIF `path`.

    `films` has the keys of TITLES, and `rates` those of success (0 to 1); `losses` is the mean
    training loss of each epoch.
    """
    curve = _curve(losses)
    length = max(len(film.pictures) for shown in films.values() for film in shown) + 1
    frames = [_frame(films, rates, curve, number) for number in range(length)]
    palette = frames[-1].quantize(COLOURS)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    durations = [FIRST_FRAME_MS, *[FRAME_MS] * (len(others) - 1), LAST_FRAME_MS]
    with atomic_open(path, "wb") as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)


def _frame(
    films: Mapping[str, Sequence[Film]], rates: Mapping[str, float], curve: Image.Image, number: int
) -> Image.Image:
    width = (PANEL[0] + BETWEEN) * len(TITLES) + curve.width
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", 16)
    frame = Image.new("RGB", (width, PANEL[1]), PAPER)
    for column, (key, title) in enumerate(TITLES.items()):
        left = column * (PANEL[0] + BETWEEN)
        text = f"{title}: {rates['success_' + key]:.0%} succeed"
        ImageDraw.Draw(frame).text((left + 2, 3), text, INK, font)
        for place, film in enumerate(films[key]):
            row, across = divmod(place, 2)
            corner = (left + across * (TILE[0] + GAP), TITLE + row * (TILE[1] + GAP))
            frame.paste(film.frame(number), corner)
    frame.paste(curve, (width - curve.width, 0))
    return frame


def _curve(losses: Sequence[float]) -> Image.Image:
    """The loss over epochs, as tall as a panel."""
    plt = figures.pyplot()
    size = (CURVE / 100, PANEL[1] / 100)
    figure, axis = plt.subplots(figsize=size, dpi=100, constrained_layout=True)
    axis.plot(range(1, len(losses) + 1), losses, color=plot.COLOURS[0], linewidth=2.5)
    axis.set_yscale("log")
    axis.set_title("training loss", fontsize=12)
    axis.set_xlabel("epoch", fontsize=11)
    axis.tick_params(labelsize=10)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    with io.BytesIO() as file:
        figure.savefig(file, format="png")
        plt.close(figure)
        return Image.open(file).convert("RGB")
