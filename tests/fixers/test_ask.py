"""input() in train_utils."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "text",
    [
        "answer = 'input(prompt)'\n",
        "def input(prompt):\n    return 'y'\n\nanswer = input('?')\n",
        "from mine import input\nanswer = input('?')\n",
        "answer = terminal.input('?')\n",
    ],
    ids=["in a string", "own function", "other library", "method"],
)
def test_leaves_what_is_not_the_builtin(text):
    check_untouched("ask", text)


def test_the_overwrite_question():
    text = """import os
{}
def get_exp_dir(config):
    if os.path.exists(base):
        ans = {}("overwrite {{}}? (y/n)\\n".format(base))
"""
    ours = "import robomimic_ddp.api as DDPUtils\n"
    check_edit(
        "ask",
        text.format("", "input"),
        text.replace("{}\n", ours + "{}\n", 1).format("", "DDPUtils.ask"),
    )
