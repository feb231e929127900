"""`ddp.json` beside the host's config.json: options, plan, newest state and outcome of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from robomimic_ddp.checkpoint import RECORD_NAME
from robomimic_ddp.distributed import atomic_files


class RunRecord:
    """The main rank's record of its run in `directory`; `content` is for JSON."""

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory, self.content = directory, content
        self._warned = False

    def write(self) -> None:
        """Replaces the file. Raises OSError."""
        with atomic_files.atomic_open(self.directory / RECORD_NAME) as file:
            file.write(json.dumps(self.content, indent=2) + "\n")

    def add(self, **items: Any) -> None:
        """Adds `items` and replaces the file; warns once if that fails."""
        self.content.update(items)
        try:
            self.write()
        except OSError as error:
            if not self._warned:
                print(f"warning: {RECORD_NAME} could not be written: {error}", file=sys.stderr)
            self._warned = True
