"""One optimizer update: precision, accumulation, gradient norm, averaged copy."""

from __future__ import annotations

from robomimic_ddp.step.choice import effective
from robomimic_ddp.step.communication import compress
from robomimic_ddp.step.prepare import Prepared, prepare

__all__ = ["Prepared", "compress", "effective", "prepare"]
