"""Files that helpers of train() copy (PBL-gatech's fork: `safe_copy_file`, with retries)."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

OURS = "import robomimic_ddp.api as DDPUtils\n"


@pytest.mark.parametrize(
    "text",
    [
        "import shutil\nshutil.copytree(a, b)  # no copyfile\n",
        "from mine import shutil\nshutil.copyfile(a, b)\n",
        "def copyfile(a, b):\n    pass\n",
    ],
    ids=["another operation", "another library", "the host's own"],
)
def test_leaves_others(text):
    check_untouched("helper_copies", text)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import shutil\n", "shutil.copyfile"),
        ("from shutil import copyfile as c\n", "c"),
    ],
)
def test_a_helper_that_tries_again(imports, name):
    text = """{}
def safe_copy_file(src_path, dst_path, max_retries=3):
    for attempt in range(max_retries):
        try:
            return {}(src_path, dst_path)
        except OSError:
            pass
"""
    check_edit(
        "helper_copies",
        text.format(imports, name),
        text.format(imports + OURS, "DDPUtils.copyfile"),
    )
