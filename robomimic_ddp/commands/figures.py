"""Draws image files with matplotlib; without it, raises an error that says what to install."""

from __future__ import annotations

import io
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.errors import DataError


def pyplot() -> Any:
    """Return `matplotlib.pyplot` with the Agg backend. Raises DataError if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(
            f"plots need matplotlib, which cannot be imported: {error}. Install the extra: "
            'pip install ".[plot]" in robomimic-ddp\'s checkout.'
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, output: str) -> None:
    """Write the picture, whose ending chooses the format, and close it. Raises DataError."""
    from matplotlib import pyplot
    from matplotlib.text import Text

    file = paths.expanded(output)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for text in figure.findobj(Text):  # names and instructions are no formulas
            text.set_text(text.get_text().replace("$", r"\$"))
        picture = io.BytesIO()
        figure.savefig(picture, dpi=130, format=file.suffix[1:])
        files.require_no_link(file)
        with atomic_open(file, "wb", follow=True) as opened:
            opened.write(picture.getvalue())
    except (OSError, ValueError) as error:  # ValueError: an ending that stands for no format
        raise DataError(
            f"the plot {output!r} cannot be written: {error}. Name a file in a writable folder, "
            "such as -o curves.png."
        ) from error
    finally:
        pyplot.close(figure)
