"""What fixers edit, what they leave, and what they do not recognise."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.cases import EDITS, UNRECOGNISED, UNTOUCHED
from tests.fixers.support import check_marked, check_untouched


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in EDITS.items() for text in texts]
)
def test_edits(name, text):
    check_marked(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"{name}: {case}")
        for name, texts in UNTOUCHED.items()
        for case, text in texts.items()
    ],
)
def test_leaves_what_is_something_else(name, text):
    check_untouched(name, text)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [(name, *case) for name, cases in UNRECOGNISED.items() for case in cases],
)
def test_says_so_where_it_cannot_be_sure(name, text, line):
    outcome = check_untouched(name, text, Unrecognised)
    assert (outcome.where, outcome.blocks) == (line, name not in ("over_ranks", "simulator"))
    assert name != "distributed" or text.partition("train")[2].partition(":")[0] in outcome.why
