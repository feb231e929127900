"""`PrintLogger`: the text log is the main rank's; the others keep their warnings and errors."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.print_logger` on `PrintLogger`."""
    return decorate(source, "PrintLogger", "print_logger", kind=cst.ClassDef)


FIXER = Fixer(
    seam="loggers",
    files=("utils/log_utils.py",),
    words=("class PrintLogger",),
    fix=fix,
    by_hand="decorate the class that copies stdout into log.txt with @DDPUtils.print_logger",
    required=False,
)
