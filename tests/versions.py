"""What older versions lack (scripts/test.sh --oldest): marks that skip a test, with the reason."""

from __future__ import annotations

import pytest
import torch

from robomimic_ddp.step import calls

NEEDS_OPTIMIZER_HOOKS = pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_state_dict_post_hook"),
    reason="this torch has no hooks on an optimizer's state_dict, so the option is not offered",
)
NEEDS_CALL_PLACE = pytest.mark.skipif(
    not calls.can_be_replaced(),
    reason="this torch has no Module.compile, so the option is not offered",
)
NEEDS_CPU_FP16 = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch has fp16 on GPUs only"
)
