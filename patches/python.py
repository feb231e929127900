"""Python's own parser, for what LibCST would be slow or less clear at."""

from __future__ import annotations

import ast
import warnings


def syntax_tree(data: bytes, path: str = "<host>") -> ast.Module:
    """The tree of `data`. The host's own faults (invalid escapes) are not ours to warn of.

    Raises SyntaxError, or ValueError for bytes that cannot be source text.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data, path)
