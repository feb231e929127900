"""One optimizer update: precision, accumulation, gradient norm, averaged copy."""

from __future__ import annotations

from robomimic_ddp.distributed.comm_hooks import Communication, communicate
from robomimic_ddp.step.choice import added_by_max, effective
from robomimic_ddp.step.prepare import Prepared, prepare

__all__ = [
    "Communication",
    "Prepared",
    "added_by_max",
    "communicate",
    "effective",
    "prepare",
]
