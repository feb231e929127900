"""matplotlib for image files, or one clear error without it."""

from __future__ import annotations

from typing import Any

from robomimic_ddp.errors import DataError


def pyplot() -> Any:
    """`matplotlib.pyplot` with the Agg backend. Raises DataError if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(
            f"the picture is drawn with matplotlib, which cannot be imported: {error}. Install the "
            'extra: pip install ".[plot]" in robomimic-ddp\'s checkout.'
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
