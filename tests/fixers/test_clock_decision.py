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
        "spent = 0\n    spent += time.time() - last\n    log(spent / 60)",
        "hours: float = (time.time() - last) / 3600\n    log(hours)\n    if config.hours > 1:\n"
        "        pass",
        "minutes = int((time.time() - last) // 60)\n    rest = minutes % 60\n"
        "    log(rest if rest > 9 else f'0{rest}')",
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
        "spent += time.time() - last\n    if <<|DDPUtils.agree(>>spent > limit<<|)>>:\n"
        "        pass",
        "spent: float = time.time() - last\n"
        "    due: bool = <<|DDPUtils.agree(>>spent > limit<<|)>>",
        "spent = time.time() - last\n    total += spent\n    hours = round(total) / 3600\n"
        "    if <<|DDPUtils.agree(>>hours >= limit<<|)>>:\n        pass",
        "spent = datetime.datetime.utcnow() - begun\n    hours = spent.total_seconds() / 3600\n"
        "    if <<|DDPUtils.agree(>>hours > limit<<|)>>:\n        pass",
        "if <<|DDPUtils.agree(>>timeit.default_timer() > end<<|)>>:\n        pass",
        "if <<|DDPUtils.agree(>>time.process_time() > end<<|)>>:\n        pass",
        "late = <<|DDPUtils.agree(>>time.time() > end<<|)>>\n    if late == True:\n        pass",
    ],
    ids=[
        *("the checkpoint every n seconds", *FIRST),
        *("if", "elif", "through a variable", "while", "after and"),
        *("added up", "annotated", "computed from it", "a timedelta"),
        *("timeit", "time of the CPU", "the decision is compared"),
    ],
)
def test_decisions_are_agreed_on(body):
    check_marked("clock_decision", f"import datetime, time, timeit\n@@\n{TRAIN}    {body}\n")


def test_says_so_where_the_decision_is_inside_a_call():
    text = f"import time\n{TRAIN}    save(time.time() - last > limit)\n"
    assert check_untouched("clock_decision", text, Unrecognised).where == 4
