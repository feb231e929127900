"""Which steps of the demo are done already: a file beside each result that says what it was made
from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

CHECKOUT = Path(__file__).resolve().parents[2]


class Stamps:
    """The stamps in `folder`. A step whose inputs changed, or that was cut short, is done again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut_short = False
        """Whether the step in hand was begun from the same inputs before, and did not end."""

    def run(self, step: str, inputs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The result of `make()`, made now or, for the same `inputs`, in an earlier run.

        `inputs` and the result must be JSON. `make` removes by itself what an earlier run left.
        """
        stamp = self.folder / f"{step}.done.json"
        key = digest(inputs)
        found = json.loads(stamp.read_text()) if stamp.exists() else {}
        if found.get("inputs") == key:
            return found["result"]
        stamp.unlink(missing_ok=True)
        begun = self.folder / f"{step}.begun"
        self.cut_short = begun.exists() and begun.read_text() == key
        begun.write_text(key)
        result = make()
        unfinished = stamp.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"inputs": key, "result": result}))
        unfinished.replace(stamp)
        begun.unlink()
        return result


def digest(inputs: Mapping[str, Any]) -> str:
    """One short text for `inputs`: equal for equal JSON."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def code_version(*parts: str) -> str:
    """A digest of our source files under `parts`, folders or files of the checkout."""
    found = hashlib.sha256()
    for file in _files(parts):
        found.update(file.relative_to(CHECKOUT).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def _files(parts: Iterable[str]) -> list[Path]:
    files: set[Path] = set()
    for part in parts:
        path = CHECKOUT / part
        files.update(path.rglob("*.py") if path.is_dir() else [path])
    return sorted(files)


def fresh_folder(folder: Path) -> Path:
    """`folder`, empty; whatever was in it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
