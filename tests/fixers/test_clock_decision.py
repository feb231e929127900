"""Decisions that train() takes from the clock."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_marked, check_untouched

TRAIN = "def train(config, device):\n    last = time.time()\n"


@pytest.mark.parametrize(
    "body",
    [
        "seconds = time.time() - last",
        "check = epoch % config.every_n_epochs == 0",
        "if config.every_n_seconds is not None:\n        pass",
    ],
)
def test_leaves_times_that_decide_nothing(body):
    check_untouched("clock_decision", f"import time\n{TRAIN}    {body}\n")


FIRST = ("every", "not should_save", "config.save.enabled and due", "f(config)")


@pytest.mark.parametrize(
    "body",
    [
        """if config.save.enabled:
        time_check = (config.save.every_n_seconds is not None) and \\
            <<|DDPUtils.agree>>(time.time() - last > config.save.every_n_seconds)
        epoch_check = epoch % 2 == 0""",
        *(
            f"check = <<|DDPUtils.agree(>>{first} and (time.time() - last > config.seconds)<<|)>>"
            for first in FIRST  # what is more than configuration is agreed on too
        ),
        "if <<|DDPUtils.agree(>>time.time() - last > limit<<|)>>:\n        pass",
        "if a:\n        pass\n    elif <<|DDPUtils.agree(>>not time.time() < end<<|)>>:\n        f",
        "spent = time.time() - last\n    due = <<|DDPUtils.agree(>>spent > limit<<|)>>",
        "while <<|DDPUtils.agree(>>time.monotonic() < limit<<|)>>:\n        pass",
        "if config.a and(<<|DDPUtils.agree(>>time.time() - last > limit<<|)>>):\n        pass",
    ],
    ids=[
        *("the checkpoint every n seconds", *FIRST),
        *("if", "elif", "through a variable", "while", "after and"),
    ],
)
def test_decisions_are_agreed_on(body):
    check_marked("clock_decision", f"import time\n@@\n{TRAIN}    {body}\n")


def test_says_so_where_the_decision_is_inside_a_call():
    text = f"import time\n{TRAIN}    save(time.time() - last > limit)\n"
    assert check_untouched("clock_decision", text, Unrecognised).where == 4
