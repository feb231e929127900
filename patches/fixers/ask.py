"""Questions to the terminal: ranks share one, and a job in a queue has none."""

from __future__ import annotations

from robomimic_ddp.patches.cst import api_calls, calls, rename, settle
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`input(prompt)` becomes `DDPUtils.ask(prompt)`."""
    edits = [rename(source, call, "ask") for call in calls(source, source.module, "builtins.input")]
    return settle(edits, api_calls(source, source.module, "ask"), "nothing is asked")


FIXER = Fixer(
    seam="run directory",
    files=("utils/train_utils.py",),
    words=("def get_exp_dir(",),
    fix=fix,
    by_hand="ask with DDPUtils.ask(prompt)",
    required=False,
)
