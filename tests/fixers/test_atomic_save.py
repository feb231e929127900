"""torch.save in save_model."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

OURS = "import robomimic_ddp.api as DDPUtils\n"
SAVE = "def save_model(model, ckpt_path):\n"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ndef other(p):\n    torch.save({}, p)\ndef save_model(model):\n    pass\n",
        "import numpy as torch\ndef save_model(model, path):\n    torch.save(model, path)\n",
        "import torch\nclass S:\n    def save_model(self, path):\n        torch.save(self, path)\n",
    ],
    ids=["other function", "other library", "method"],
)
def test_leaves_other_saves(text):
    check_untouched("atomic_save", text)


@pytest.mark.parametrize(
    ("imports", "name"), [("import torch\n", "torch.save"), ("from torch import save\n", "save")]
)
def test_the_checkpoint(imports, name):
    check_edit(
        "atomic_save",
        f"{imports}{SAVE}    {name}(params, ckpt_path)\n    print(ckpt_path)\n",
        f"{imports}{OURS}{SAVE}    DDPUtils.save(params, ckpt_path)\n    print(ckpt_path)\n",
    )


@pytest.mark.parametrize("arguments", ["params, f=path", "params, path, pickle", "*both"])
def test_says_so_for_other_calls(arguments):
    text = f"import torch\n{SAVE}    torch.save({arguments})\n"
    assert check_untouched("atomic_save", text, Unrecognised).where == 3


def test_in_a_helper_of_save_model():
    text = """import torch
{}def _safe_save(params, path):
    for attempt in range(3):
        {}(params, path)
def other(x):
    torch.save(x, "x")
def save_model(model, ckpt_path):
    _safe_save(params={{"model": model}}, path=ckpt_path)
"""
    check_edit(
        "atomic_save",
        text.format("", "torch.save"),
        text.format("import robomimic_ddp.api as DDPUtils\n", "DDPUtils.save"),
    )
