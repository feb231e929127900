"""Line numbers of edited code as on disk, for tracebacks, debuggers and `inspect`."""

from __future__ import annotations

import ast
import difflib
from types import CodeType

from robomimic_ddp.patches.syntax.python import syntax_tree


def compile_as(before: bytes, after: bytes, path: str) -> CodeType:
    """Return the code of `after`, each line with the number of its line in `before`."""
    tree = syntax_tree(after, path)
    original = original_lines(before, after)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            (start, same), (end, same_end) = original[node.lineno], original[node.end_lineno]
            node.lineno, node.end_lineno = start, end
            if not (same and same_end):  # another text's columns would misplace a traceback's marks
                node.col_offset, node.end_col_offset = 0, 0
    # dont_inherit: this file's own `from __future__` lines must not apply to the host's.
    return compile(tree, path, "exec", dont_inherit=True)


def original_lines(before: bytes, after: bytes) -> dict[int, tuple[int, bool]]:
    """Line of `after` (1-based) -> (line of `before`, whether the two are the same text).

    A replaced line stands for the one it replaces, an added line for the one below it. Lines never
    run backwards, so that a node still ends where it starts or later.
    """
    old, new = before.splitlines(), after.splitlines()
    lines = {}
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        last = max(old_start, old_end - 1)
        for index in range(new_start, new_end):
            line = min(old_start + index - new_start, last)
            lines[index + 1] = (min(line + 1, max(len(old), 1)), tag == "equal")
    return lines
