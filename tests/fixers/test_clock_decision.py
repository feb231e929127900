"""Decisions that train() takes from the clock."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

HEAD = "import time\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"
TRAIN = "def train(config, device):\n    last = time.time()\n"


@pytest.mark.parametrize(
    "body",
    [
        "seconds = time.time() - last",
        "print(time.time())",
        "check = epoch % config.every_n_epochs == 0",
        "if config.every_n_seconds is not None:\n        pass",
    ],
)
def test_leaves_times_that_decide_nothing(body):
    check_untouched("clock_decision", f"{HEAD}{TRAIN}    {body}\n")


def test_the_checkpoint_every_n_seconds():
    text = """def train(config, device):
    last = time.time()
    if config.save.enabled:
        time_check = (config.save.every_n_seconds is not None) and \\
            {}(time.time() - last > config.save.every_n_seconds)
        epoch_check = epoch % 2 == 0
"""
    check_edit(
        "clock_decision",
        HEAD + text.format(""),
        HEAD + OURS + text.format("DDPUtils.agree"),
    )


@pytest.mark.parametrize(
    "first", ["every", "not should_save", "config.save.enabled and due", "f(config)"]
)
def test_what_is_more_than_configuration_is_agreed_on_too(first):
    text = "    check = {}{} and (time.time() - last > config.save.every_n_seconds){}\n"
    check_edit(
        "clock_decision",
        HEAD + TRAIN + text.format("", first, ""),
        HEAD + OURS + TRAIN + text.format("DDPUtils.agree(", first, ")"),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if time.time() - last > limit:\n        pass",
            "if DDPUtils.agree(time.time() - last > limit):\n        pass",
        ),
        (
            "if a:\n        pass\n    elif not time.time() < limit:\n        pass",
            "if a:\n        pass\n    elif DDPUtils.agree(not time.time() < limit):\n        pass",
        ),
        (
            "spent = time.time() - last\n    due = spent > limit",
            "spent = time.time() - last\n    due = DDPUtils.agree(spent > limit)",
        ),
        (
            "while time.monotonic() < limit:\n        pass",
            "while DDPUtils.agree(time.monotonic() < limit):\n        pass",
        ),
        (
            "if(time.time() - last > limit):\n        pass",
            "if(DDPUtils.agree(time.time() - last > limit)):\n        pass",
        ),
        (
            "if config.a and(time.time() - last > limit):\n        pass",
            "if config.a and(DDPUtils.agree(time.time() - last > limit)):\n        pass",
        ),
    ],
    ids=["if", "elif", "through a variable", "while", "touched", "after and"],
)
def test_other_shapes(before, after):
    check_edit(
        "clock_decision", f"{HEAD}{TRAIN}    {before}\n", f"{HEAD}{OURS}{TRAIN}    {after}\n"
    )


def test_says_so_where_the_decision_is_inside_a_call():
    text = f"{HEAD}{TRAIN}    save(time.time() - last > limit)\n"
    assert check_untouched("clock_decision", text, Unrecognised).where == 4
