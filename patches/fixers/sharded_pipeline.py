"""octo's `make_interleaved_dataset(...)` in `train()`: hosts with a tf.data pipeline of their own.

Each rank reads its share of the episodes; whatever the host does with what it reads stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    api_calls,
    settle,
    train_function,
    wrap,
)
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

MAKER = "make_interleaved_dataset"
LIBRARIES = {"octo", "dlimp"}
"""One of these in the imported name: some hosts carry a copy, as in `mylab.octo.data.dataset`."""


def fix(source: Source) -> Outcome:
    """`make_interleaved_dataset(` becomes `DDPUtils.sharded(make_interleaved_dataset)(`."""
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    edits = [wrap(source, call.func, "sharded") for call in _maker_calls(source, train)]
    done = api_calls(source, train, "sharded")
    return settle(edits, done, f"train() does not call octo's {MAKER}")


def _maker_calls(source: Source, train: cst.FunctionDef) -> Iterator[cst.Call]:
    for call in walk(train, cst.Call):
        for name in source.names(call.func):
            *where, last = name.split(".")
            if last == MAKER and not LIBRARIES.isdisjoint(where):
                yield call
                break


FIXER = Fixer(
    seam="RLDS",
    files=TRAIN_SCRIPTS,
    words=(MAKER,),
    fix=fix,
    by_hand=f"call DDPUtils.sharded({MAKER})(...) where the training dataset is made",
    required=False,
    note="each rank reads its share of the episodes, the same for the whole run; a redraw for "
    "each pass and resuming at the exact place are promised for robomimic-ddp's own loader only",
)
