"""Asks git which files of the host's tree are changed; no answer without git or a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SECONDS = 20


def uncommitted(root: Path, ours: frozenset[Path] = frozenset()) -> list[str] | None:
    """Changed and new files of the checkout `root`, without `ours` (absolute); None without git."""
    # The host's own git configuration may name a program as file-system monitor: not run by us.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), "status", "--porcelain", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    words = iter(done.stdout.decode("utf-8", "replace").split("\0"))
    changed = []
    for word in words:
        if word[:1] in ("R", "C"):
            next(words, None)  # where it was before
        if word and root / word[3:] not in ours:
            changed.append(word[3:])
    return changed
