"""Gradients that travel between ranks in 16 bits, by torch's own hooks."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp import wrap

HOOKS = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


def compress(nets: list, comm: str) -> str | None:
    """Has the DDP objects of `nets` (parallel nets, built) send gradients as `comm` says; the
    plan's line on it, or None where nothing is sent or changed. Once, before the first backward.
    """
    states = [wrap.state_of(net) for net in nets]
    states = [one for one in states if isinstance(one.parallel, DistributedDataParallel)]
    if comm == "none" or not states:
        return None
    for state in states:
        state.parallel.register_comm_hook(None, HOOKS[comm])
    numbers = sum(_numbers(state) for state in states)
    return (
        f"gradients: {2 * numbers / 1e6:.1f} MB a step in {comm} "
        f"(in place of {4 * numbers / 1e6:.1f} MB in fp32)"
    )


def _numbers(state: Any) -> int:
    return sum(parameter.numel() for parameter in state.reduced)
