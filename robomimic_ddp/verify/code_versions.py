"""Versions and digests of the code that a rank runs."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy
import torch

import robomimic_ddp
from robomimic_ddp import files
from robomimic_ddp.config.host import host_edits


def software(host_package: str | None) -> dict[str, str]:
    """Versions, and digests of our source files and of the package `host_package` ("robomimic"):
    nodes may have separate checkouts, with different edits.
    """
    versions = {
        "robomimic_ddp version": robomimic_ddp.__version__,
        "torch version": torch.__version__,
        "numpy version": numpy.__version__,
        "Python version": platform.python_version(),
        "robomimic_ddp's code": source_digest(Path(robomimic_ddp.__file__).parent),
    }
    folder = host_edits.package_folder(host_package)
    if folder is not None:
        versions[f"the host's code ({host_package})"] = source_digest(folder)
    return versions


def commit(folder: Path | None) -> str | None:
    """Return the git commit of the package in `folder`; None where git does not know it."""
    if folder is None:
        return None
    git = ["git", "-C", str(folder)]
    options: dict = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], **options)
        return subprocess.run([*git, "rev-parse", "HEAD"], **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def source_digest(folder: Path) -> str:
    """Return a digest of names and bytes of .py files below `folder`, without `*_private.py`."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(_sources(str(folder))):
        with suppress(OSError):  # a pipe, or a link that leads nowhere: Python imports neither
            content = files.read_bytes(path)
            digest.update(os.path.relpath(path, folder).encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py") and not name.endswith("_private.py"):
                yield os.path.join(place, name)
