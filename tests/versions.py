"""What older versions lack (scripts/test.sh --oldest): marks that skip a test, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import api

from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.training.step import compile, module_call

NEEDS_OPTIMIZER_HOOKS = pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_state_dict_post_hook"),
    reason="this torch has no hooks on an optimizer's state_dict, so the option is not offered",
)
NEEDS_CALL_PLACE = pytest.mark.skipif(
    not module_call.can_be_replaced(),
    reason="this torch has no Module.compile, so the option is not offered",
)
NEEDS_COMPILER = pytest.mark.skipif(
    torch.__version__ < compile.OLDEST,
    reason="this torch's compiler fails on image encoders, so the option is not offered",
)
NEEDS_CPU_FP16 = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch has fp16 on GPUs only"
)
NEEDS_SIGNALS_OF_TORCHRUN = pytest.mark.skipif(
    "SIGNALS_TO_HANDLE" not in Path(api.__file__).read_text(encoding="utf-8"),
    reason="this torch's torchrun ends on SIGUSR1 and does not pass it on",
)
NEEDS_FSDP = pytest.mark.skipif(
    fsdp.why_not("cpu") is not None, reason=fsdp.why_not("cpu") or "nothing is lacking"
)
NEEDS_META_NORM = pytest.mark.skipif(
    torch.__version__.startswith("2.0."), reason="this torch has no norm on the meta device"
)
OF_OPTIONS = {
    "compile": NEEDS_COMPILER,
    "activation_checkpointing": NEEDS_CALL_PLACE,
}


def cases(options_of: dict[str, dict]) -> list:
    """The names of a table of options; those that this torch cannot have are skipped."""
    found = []
    for name, options in options_of.items():
        found.append(pytest.param(name, marks=_marks(options)))
    return found


def require(options: dict) -> None:
    """Skip the test where this torch cannot have one of the options."""
    for mark in _marks(options):
        if mark.args[0]:
            pytest.skip(mark.kwargs["reason"])


def _marks(options: dict) -> list:
    marks = [mark for option, mark in OF_OPTIONS.items() if options.get(option)]
    marks += [NEEDS_CPU_FP16] * (options.get("precision") == "fp16")
    return marks + [NEEDS_FSDP] * (options.get("mode") == "fsdp")


def gloo_sends_bf16() -> bool:
    """On a rank of the pool."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=torch.bfloat16))
    except RuntimeError:
        return False
    return True
