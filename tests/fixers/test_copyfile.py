"""Copies that train() makes."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

OURS = "import robomimic_ddp.api as DDPUtils\n"
TRAIN = "def train(config, device):\n"


def test_leaves_copies_outside_train():
    check_untouched("copyfile", f"import shutil\nshutil.copyfile(a, b)\n{TRAIN}    pass\n")


@pytest.mark.parametrize(
    ("imports", "name"),
    [("import shutil\n", "shutil.copyfile"), ("from shutil import copyfile as cp\n", "cp")],
)
def test_the_backup_copy(imports, name):
    text = TRAIN + "    {}(latest_model_path, latest_model_backup_path)  # keep\n"
    check_edit(
        "copyfile", imports + text.format(name), imports + OURS + text.format("DDPUtils.copyfile")
    )


@pytest.mark.parametrize("name", ["shutil.copy", "shutil.move", "os.replace", "shutil.copytree"])
def test_says_so_for_copies_it_does_not_know(name):
    text = f"import os\nimport shutil\n{TRAIN}    {name}(a, b)\n"
    assert check_untouched("copyfile", text, Unrecognised).where == 4
