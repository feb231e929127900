"""Edited code carries the line numbers of the file on disk."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.patches.syntax.line_numbers import compile_as, original_lines


def test_added_and_replaced_lines():
    assert original_lines(b"a\nb\nc\n", b"a\nnew\nb\nB\nc\n") == {
        1: (1, True),
        2: (2, False),
        3: (2, True),
        4: (3, False),
        5: (3, True),
    }


def test_unedited_code_is_compiled_as_it_is():
    text = b"import os\n\n\ndef train(config):\n    return config + 1\n"
    assert compile_as(text, text, "x.py") == compile(text, "x.py", "exec", dont_inherit=True)


LINES = st.lists(
    st.sampled_from([b"x = 1", b"y = (1 +\n 2)", b"def f():\n    return 1", b"@d\ndef g(): pass"]),
    max_size=12,
).map(lambda lines: b"\n".join(lines) + b"\n")


@given(LINES, LINES)
def test_any_two_texts_compile_within_the_lines_of_the_first(before, after):
    code = compile_as(before, after, "x.py")
    last = max(len(before.splitlines()), 1)
    lines = [line for _, _, line in code.co_lines() if line] if hasattr(code, "co_lines") else []
    assert all(0 < line <= last for line in lines)
    numbers = [line for line, _ in original_lines(before, after).values()]
    assert numbers == sorted(numbers)
    ast.parse(after)
