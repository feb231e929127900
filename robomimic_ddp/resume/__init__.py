"""Going on where a run stopped: which directory, what is put back, what each epoch's end keeps."""

from __future__ import annotations

from robomimic_ddp.resume.keeper import Keeper
from robomimic_ddp.resume.start import decide, restored, saved_state

__all__ = ["Keeper", "decide", "restored", "saved_state"]
