"""One optimizer update: precision, accumulation, gradient norm, averaged copy."""

from __future__ import annotations

from robomimic_ddp.step.prepare import Prepared, prepare

__all__ = ["Prepared", "prepare"]
