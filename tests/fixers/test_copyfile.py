"""Copies that train() makes."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    "name", ["shutil.copy", "shutil.move", "os.replace", "shutil.copytree", "os.remove"]
)
def test_whatever_else_one_rank_must_do(name):
    head = "import os\nimport shutil\n"
    text = TRAIN + "    if os.path.exists(a):\n        {}(a)  # results\n"
    check_edit(
        "copyfile",
        head + text.format(name),
        head + OURS + text.format(f"DDPUtils.main_rank_only({name})"),
    )


def test_leaves_videos_which_only_the_main_rank_has():
    check_untouched(
        "copyfile", f"import os\n{TRAIN}    os.remove(video_paths[env_name])\n    os.listdir(a)\n"
    )
