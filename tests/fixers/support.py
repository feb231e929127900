"""How fixer tests run one fixer on a piece of text, always twice."""

from __future__ import annotations

import re
import textwrap

from robomimic_ddp.patches.engine import patch_file
from robomimic_ddp.patches.outcomes import AlreadyApplied, Applied, NotPresent, Outcome
from robomimic_ddp.patches.registry import all_fixers

IMPORT = "import robomimic_ddp.api as DDPUtils\n"


def run(
    name: str, text: str, path: str = "", traits: frozenset[str] = frozenset()
) -> tuple[Outcome, str]:
    """The fixer's outcome and the text after it. Line ends are kept as they are."""
    fixer = all_fixers()[name]
    outcomes, patch = patch_file(path or fixer.files[0], text.encode(), [fixer], traits)
    return outcomes[0], patch.after.decode()


def check_edit(name: str, before: str, after: str) -> None:
    """`before` becomes exactly `after`, and applied again it stays."""
    before, after = textwrap.dedent(before).lstrip("\n"), textwrap.dedent(after).lstrip("\n")
    outcome, text = run(name, before)
    assert isinstance(outcome, Applied), outcome
    assert text == after
    assert all_fixers()[name].may_apply_to(after.encode()), "it would not be found again"
    again, text = run(name, after)
    assert isinstance(again, AlreadyApplied), again
    assert text == after
    assert len(again.lines) >= 1


def check_marked(name: str, text: str) -> None:
    """`check_edit` of one text with each change written in it as <<before|after>>, and our import
    as the line @@.
    """
    before = re.sub(r"<<(.*?)\|(.*?)>>", r"\1", text.replace("@@\n", ""), flags=re.DOTALL)
    after = re.sub(r"<<(.*?)\|(.*?)>>", r"\2", text.replace("@@\n", IMPORT), flags=re.DOTALL)
    assert before != after
    check_edit(name, before, after)


def check_untouched(name: str, text: str, kind: type = NotPresent, **options) -> Outcome:
    """The fixer answers `kind` and leaves every byte; returns the outcome."""
    text = textwrap.dedent(text).lstrip("\n")
    outcome, after = run(name, text, **options)
    assert isinstance(outcome, kind), outcome
    assert after == text
    return outcome
