"""What a hostile checkpoint could do: unpickling it calls a function."""

from __future__ import annotations

import os
from typing import Any


class Calls:
    """Unpickling this calls a function, and may give its result a state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple:
        return self.reduced


PROGRAM = Calls(os.mkdir, ("executed",))
"""Makes a folder where the process is."""
