"""Files that train() writes."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

HEAD = "import json\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"
TRAIN = "def train(config, device):\n"


@pytest.mark.parametrize(
    "call", ["open(path)", "open(path, 'r')", "open(path, mode='rb')", "h5py.open(path, 'w')"]
)
def test_leaves_files_that_are_read(call):
    check_untouched("open_on_main", f"{HEAD}{TRAIN}    f = {call}\n")


def test_leaves_files_written_outside_train():
    text = f"{HEAD}def dump(path):\n    open(path, 'w').write('')\n{TRAIN}    pass\n"
    check_untouched("open_on_main", text)


@pytest.mark.parametrize("mode", ["'w'", '"w"', "'wb'", "mode='wt'"])
def test_files_opened_for_writing(mode):
    text = (
        "{}    with {}(os.path.join(log_dir, '..', 'config.json'), {}) as outfile:\n        pass\n"
    )
    check_edit(
        "open_on_main",
        HEAD + text.format(TRAIN, "open", mode),
        HEAD + OURS + text.format(TRAIN, "DDPUtils.open_on_main", mode),
    )


@pytest.mark.parametrize(
    "call", ["open(path, 'a')", "open(path, mode)", "open(path, 'w', 1)", "open(path, 'r+')"]
)
def test_says_so_for_other_ways_of_writing(call):
    text = f"{HEAD}{TRAIN}    f = {call}\n"
    assert check_untouched("open_on_main", text, Unrecognised).where == 3
