"""One optimizer update: precision, accumulation, gradient norm, averaged copy."""

from __future__ import annotations

from robomimic_ddp.distributed.comm_hooks import communicate
from robomimic_ddp.training.step.presets import Prepared, added_by_max, prepare, with_preset
from robomimic_ddp.training.step.schedule import shorten

__all__ = [
    "Prepared",
    "added_by_max",
    "communicate",
    "prepare",
    "shorten",
    "with_preset",
]
