"""Checks whether paths that users give can be read or written, before a run depends on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import CheckpointError, UsageError


def expanded(path: Any) -> Path:
    """`path` with ~ expanded, except for an unknown user."""
    return Path(os.path.expanduser(str(path)))


def absolute(path: Any) -> Path:
    """`path` with ~ expanded, from the root: the last folders of ".", ".." and "1.0.0" have names
    that say which dataset they are.
    """
    folder = expanded(path)
    return folder.resolve() if ".." in folder.parts else folder.absolute()


def checkpoint(text: Any, shown: str = "") -> Path:
    """Return the file of a checkpoint that a command or a config names. Raises CheckpointError,
    which names it as `shown`, if it is absent, or a folder.
    """
    file, shown = expanded(text), shown or str(text)
    if file.is_dir():
        patterns = ("last.pth", "models/*.pth", "*.pth", "*/last.pth")
        present = (path for pattern in patterns for path in file.glob(pattern))
        checkpoints = (path for path in present if not path.name.startswith("ddp_state"))
        example = next(checkpoints, file / "models/model_epoch_50.pth")
        raise CheckpointError(f"{shown} is a folder: name the file in it, such as {example}.")
    if not file.exists():
        raise CheckpointError(
            f"{shown} does not exist (looked for {file.absolute()}). Correct the path."
        )
    return file


def run_directory(text: str, hint: str = "") -> Path:
    """Return the folder of a run that a command names. Raises UsageError for anything else."""
    directory = expanded(text)
    if not directory.is_dir():
        raise UsageError(
            f"{text} is not a folder. Expected the folder of a run (logs/ and models/).{hint}"
        )
    return directory


def datasets(train: Any) -> Iterator[str]:
    """Paths of the datasets in the section `train` of a host's config; RLDS: folder and names.
    Hosts that leave `data` empty have files under names such as `data_prior` and `data_target`.
    """
    if isinstance(train, Mapping) and train.get("data_path") and train.get("dataset_names"):
        folder = expanded(train["data_path"])
        yield from (str(folder / str(name)) for name in train["dataset_names"])
        return
    data = train.get("data") if isinstance(train, Mapping) else None
    if data is None and isinstance(train, Mapping):
        named = [value for key, value in train.items() if key.startswith("data_")]
        data = [value for value in named if isinstance(value, str) and expanded(value).is_file()]
    for entry in [data] if isinstance(data, (str, Mapping)) else data or ():
        path = entry.get("path") if isinstance(entry, Mapping) else entry
        if path:
            yield str(expanded(path))


def why_not_writable(path: Any) -> str | None:
    """Return why no folder can be created at `path`, or written to if it exists; None if it can."""
    folder = expanded(path).absolute()
    text = str(folder)
    if "\0" in text or text.encode(errors="replace") != os.fsencode(text):
        return "it is not text in UTF-8, which config.json and a log need"
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return f"{nearest} is a file"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return None
    except OSError as error:
        return f"nothing may be written in {nearest} ({error.strerror})"


def example_below(directory: Path, name: str) -> str:
    """Return the newest folder that contains `name`, one level below `directory` or else two, as ",
    such as FOLDER"; "" if there is none.
    """
    files = [*directory.glob(f"*/{name}")] or [*directory.glob(f"*/*/{name}")]
    folders = sorted(
        (file.parents[name.count("/")] for file in files), key=lambda folder: folder.name
    )
    return f", such as {folders[-1]}" if folders else ""
