"""An entry of the host's own that composes its configuration with Hydra, which knows no `ddp.*`."""

from __future__ import annotations

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    api_calls,
    argument,
    calls,
    settle,
    wrap,
)
from robomimic_ddp.patches.imports import API_MODULE
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source

COMPOSE = ("hydra.compose", "hydra.experimental.compose", f"{API_MODULE}.compose")
"""The last: in hosts that an earlier version patched."""


def fix(source: Source) -> Outcome:
    """`compose(..., overrides=words)` becomes `compose(..., overrides=DDPUtils.overrides(words))`.

    (`@hydra.main` reads the command line by itself: there, options come from the environment or the
    config file.)
    """
    edits = []
    for call in calls(source, source.module, *COMPOSE):
        words = argument(call, 1, "overrides")
        if words is not None and not api_calls(source, words, "overrides"):
            edits.append(wrap(source, words, "overrides"))
    done = api_calls(source, source.module, "overrides")
    return settle(edits, done, "Hydra composes nothing from the command line")


FIXER = Fixer(
    seam="entry",
    files=TRAIN_SCRIPTS,
    words=("hydra|robomimic_ddp", "compose"),
    fix=fix,
    by_hand="compose with overrides=DDPUtils.overrides(sys.argv[1:])",
    required=False,
)
