"""What every bench writes: lines on the way, and rows as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import ConfigError


def write_rows(file: str | None, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `rows` to the JSON file of `--json`, if there is one. Raises ConfigError."""
    if file:
        try:
            Path(file).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {file} cannot be written: {error}.") from error


def tell(line: str) -> None:
    """A line on the way, beside the table on stdout."""
    print(line, file=sys.stderr, flush=True)
