"""Prints: without what controls a terminal, which names, logs and files of others may have.

Prose is fitted to the terminal, broken at spaces; a wide table's last columns are below. Elsewhere
(a pipe, a file) each line stays whole.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

_QUOTED = re.compile(r"`[^`]*`")
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor, clearing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Escape sequences, other control characters, and those that reorder a line."""
_KEPT = "\0"
"""Stands for a space in backquotes, where a command must stay one line."""
_MOST_LISTED = 16


def whole_number(least: int, most: int = 10**6) -> Callable[[str], int]:
    """Return an argument's type: whole numbers from `least` to `most`."""

    def convert(text: str) -> int:
        # Python does not read numbers of thousands of digits.
        if not (text.isdecimal() and len(text) < 19 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{text}: expected a whole number from {least} to {most}"
            )
        return int(text)

    return convert


def width(stream: IO | None = None) -> int | None:
    """Return the columns of the terminal of `stream` (default: stdout); None elsewhere."""
    stream = stream or sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(
    text: str, columns: int | None, indent: str = "", first: str | None = None
) -> list[str]:
    """`text`, cleaned, in lines of `columns` (None: as it is), `indent` before each (before the
    first one: `first`). Words longer than a line and what is in backquotes stay whole.
    """
    head = indent if first is None else first
    marked = _QUOTED.sub(lambda match: match[0].replace(" ", _KEPT), clean(text))
    lines: list[str] = []
    for line in marked.splitlines():
        style = {"initial_indent": indent if lines else head, "subsequent_indent": indent}
        if columns is None or len(style["initial_indent"] + line) <= columns:
            lines.append(style["initial_indent"] + line)
            continue
        spaces = line[: len(line) - len(line.lstrip())]
        style = {key: value + spaces for key, value in style.items()}
        whole = {"break_long_words": False, "break_on_hyphens": False}
        lines += textwrap.wrap(line.lstrip(), columns, **style, **whole)
    return [line.replace(_KEPT, " ") for line in lines]


def clean(text: Any) -> str:
    """Return `text` without escape sequences and control characters but line ends and tabs."""
    return _CONTROL.sub("", str(text))


def print_clean(text: Any = "", file: IO | None = None, colour: tuple[str, str] = ("", "")) -> None:
    """Print `text`, cleaned, at once. The one place that prints. colour: a part of the text, and
    the escape sequence that is put before it.
    """
    part, escape = colour
    shown = clean(text)
    if escape:
        shown = shown.replace(part, f"{escape}{part}\033[0m", 1)
    print(f"{shown}\n", end="", file=file, flush=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print_clean(f"warning: {text}", sys.stderr)


def announce(text: str) -> None:
    """Say on stderr what is about to take seconds without a line, if it is a terminal."""
    if width(sys.stderr) is not None:
        say(text, file=sys.stderr)


def say(text: str, file: IO | None = None) -> None:
    """Prints `text` as `wrapped` has it for the terminal behind `file` (default: stdout)."""
    print_clean("\n".join(wrapped(text, width(file))), file)


def listed(values: Iterable[Any], separator: str = ", ") -> str:
    """Return the values in one line: of many, the first ones and how many follow."""
    texts = [str(value) for value in values]
    following = [f"and {len(texts) - _MOST_LISTED} more"] if len(texts) > _MOST_LISTED else []
    return separator.join([*texts[:_MOST_LISTED], *following])


def table(rows: Sequence[Sequence[Any]], columns: int | None) -> list[str]:
    """Return a text for each row, its cells below those of the others. Where a row is wider than
    `columns` (None: any width), each row's last cells are on further lines below it.
    """
    cells = [[" ".join(clean(cell).splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    ends = [sum(widths[: count + 1]) + 2 * count for count in range(len(widths))]
    whole = max(len("  ".join(_padded(row, widths))) for row in cells)
    above = len(widths)
    if columns is not None and whole > columns:
        above = max(1, sum(end <= columns for end in ends[:-1]))
    lines = []
    for row in cells:
        padded = _padded(row, widths)
        texts = ["  ".join(padded[:above]).rstrip()]
        if below := "  ".join(padded[above:]).rstrip():
            texts += wrapped(below, columns, "    ")
        lines.append("\n".join(texts))
    return lines


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the cells with spaces up to `widths`, but the last one, which nothing follows."""
    return [*(cell.ljust(width) for cell, width in zip(row[:-1], widths)), row[-1]]
