"""Where our import stands in a host's file."""

from __future__ import annotations

import libcst as cst
import pytest

from robomimic_ddp.patches.syntax.imports import with_api_import

OURS = "import robomimic_ddp.api as DDPUtils\n"
HEAD = '"""What it does."""\nfrom __future__ import annotations\nimport os\n'
GUARD = '\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "slow", ["import torch\n", "import tensorflow as tf\n", "from . import a\n"]
)
def test_in_a_program_it_is_above_what_takes_seconds(slow, newline):
    text = f"{HEAD}{slow}import robomimic\n{GUARD}".replace("\n", newline)
    expected = f"{HEAD}{OURS}{slow}import robomimic\n{GUARD}".replace("\n", newline)
    assert with_api_import(cst.parse_module(text)).code == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\nfrom robomimic import algo\n", "\n\ndef f(): ...\n"),
        ("import torch\nimport os\n", "\n\ndef f(): ...\nimport robomimic\n"),
        (HEAD, GUARD),
        ("import torch\n", "model = DDPUtils.language_model(load)()\nimport robomimic\n"),
        ('"""Text."""\n', "x = 1\n"),
        ("", "x = 1\n"),
    ],
)
def test_elsewhere_it_is_the_last_import(before, after):
    assert with_api_import(cst.parse_module(before + after)).code == before + OURS + after
