"""How the pictures look: terminals as SVG, and small PNGs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from scripts.demo.job import CHECKOUT

IMAGES = CHECKOUT / "docs" / "images"
COLUMNS, MOST_COLOURS = 92, 256
BLUE = "#56b4e9"
_ANSI = [(30, 41, 59), (240, 113, 70), (86, 180, 140), (230, 180, 60), (86, 180, 233)]
_ANSI += [(214, 140, 190), (90, 200, 200), (226, 232, 240)]
THEME = TerminalTheme((17, 24, 39), (226, 232, 240), _ANSI, _ANSI)
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px """
SVG += FONTS
SVG += """ }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw_terminal(name: str, title: str, *shown: Any, columns: int = COLUMNS) -> None:
    """Writes docs/images/`name`.svg: a terminal with what rich would print. Its text stays text, in
    the font that the reader has.
    """
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, highlight=False
    )
    for one in (*shown, ""):  # an empty last line, since rich cuts the feet of letters there
        console.print(one)
    svg = console.export_svg(title=title, theme=THEME, code_format=SVG, unique_id=name)
    (IMAGES / f"{name}.svg").write_text(
        "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    )


def command_line(text: str) -> Text:
    """The line that a user types."""
    return Text.assemble(("$ ", BLUE), (text, "bold"))


def shrink(path: Path) -> None:
    """Fewer colours, for a smaller PNG."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(MOST_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
