"""One optimizer update: accumulated over micro-batches."""

from __future__ import annotations

from robomimic_ddp.step.prepare import prepare

__all__ = ["prepare"]
