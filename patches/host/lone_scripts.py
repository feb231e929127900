"""Finds train scripts outside packages: a separate train function over an installed robomimic, as
in IsaacLab's `scripts/imitation_learning/robomimic/train.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.errors import UsageError
from robomimic_ddp.patches.host import hosts, training_files
from robomimic_ddp.patches.syntax.python import parsed

_IMPORTS = re.compile(rb"^[ \t]*(from|import)[ \t]+robomimic\b", re.MULTILINE)


def find_host(path: str | None) -> hosts.Host:
    """Return the host at `path`: a package (see `hosts.find_host`), else the train script there, or
    those in the folder.
    """
    return hosts.find_host(path, _script_at)


def script_host(file: Path) -> hosts.Host | None:
    """The host that consists of the train script `file` (absolute); None where it is another file,
    or one of a package.
    """
    return _host((file.name,), file.parent, file.parent) if _trains(file) else None


def _script_at(place: Path) -> hosts.Host | None:
    if place.is_file():
        return script_host(place)
    scripts = [path for path in hosts.python_files(place) if _trains(path)]
    folders = {path.parent for path in scripts}
    if len(folders) > 1:
        listed = "\n".join(f"  {path}" for path in scripts)
        raise UsageError(
            f"{place} contains train scripts over an installed robomimic in several folders; give "
            f"one of them:\n{listed}"
        )
    names = tuple(path.name for path in scripts)
    return _host(names, folders.pop(), place) if scripts else None


def _host(names: tuple[str, ...], folder: Path, root: Path) -> hosts.Host:
    return hosts.Host(folder, hosts.git_root(folder) or root, scripts=names)


def _trains(file: Path) -> bool:
    try:
        data = files.read_bytes(file)
    except OSError:
        return False
    if not (_IMPORTS.search(data) and b"epoch" in data) or _is_in_package(file):
        return False
    return any(entry.function for entry in training_files.trainers(file.name, parsed(data)))


def _is_in_package(file: Path) -> bool:
    """Return whether the file belongs to a robomimic-style package, perhaps a damaged one."""
    return any(
        all((folder / mark).is_file() for mark in ("__init__.py", "algo/__init__.py"))
        for folder in file.parents
    )
