"""A unified diff of the patches that `git apply` (and `patch -p1`) takes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp.patches.outcomes import Examination, FilePatch

_CONTEXT_LINES = 3


def unified_diff(examination: Examination) -> bytes:
    """The diff, its paths relative to the host's root; b"" if there is nothing to edit."""
    host = examination.host
    return b"".join(
        _one(patch, host.target(patch.path), host.root) for patch in examination.patches
    )


def _one(patch: FilePatch, path: Path, root: Path) -> bytes:
    name = path.relative_to(root).as_posix()
    tab = "\t" if " " in name else ""  # git's way to show where a name with spaces ends
    header = f"diff --git a/{name} b/{name}\n"
    if patch.before is None:
        header += "new file mode 100644\n--- /dev/null\n"
    else:
        header += f"--- a/{name}{tab}\n"
    header += f"+++ b/{name}{tab}\n"
    lines = _hunks(_lines(patch.before or b""), _lines(patch.after))
    return os.fsencode(header) + b"".join(lines)


def _hunks(before: list[bytes], after: list[bytes]) -> Iterator[bytes]:
    """As difflib.unified_diff, which takes frequent lines (blank ones) for junk in long files."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
        first, last = group[0], group[-1]
        old, new = _range(first[1], last[2]), _range(first[3], last[4])
        yield f"@@ -{old} +{new} @@\n".encode()
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (_marked(b" ", line) for line in before[old_start:old_end])
            else:
                yield from (_marked(b"-", line) for line in before[old_start:old_end])
                yield from (_marked(b"+", line) for line in after[new_start:new_end])


def _range(start: int, stop: int) -> str:
    """Line and count of a hunk's side: 1-based, but an empty side names the line before it."""
    count = stop - start
    return f"{start + 1 if count else start},{count}"


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends. Only \\n ends a line here, as in git: a form feed does not."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _marked(mark: bytes, line: bytes) -> bytes:
    return mark + line + (b"" if line.endswith(b"\n") else b"\n\\ No newline at end of file\n")
