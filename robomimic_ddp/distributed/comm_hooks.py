"""How gradients travel between ranks: whole, in 16 bits, or compressed, by torch's own hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, parallel
from robomimic_ddp.distributed.powersgd import PowerSGD
from robomimic_ddp.errors import PlanError

HOOKS = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}
BYTES = {"none": 4, "fp16": 2, "bf16": 2}


class Communication:
    """`line`: of the printed plan. `bytes_per_step`: what a rank gives to all-reduces in a step, at
    last. `powersgd`: the compressor of each net by name, empty for another kind; their state
    belongs to the run's.
    """

    def __init__(self, line: str, bytes_per_step: int, powersgd: dict[str, PowerSGD]) -> None:
        self.line, self.bytes_per_step, self.powersgd = line, bytes_per_step, powersgd


def sends_bf16(device: str) -> bool:
    """Collective: whether gradients on `device` can travel in bf16; torch 2.0's gloo refuses."""
    if not group.is_initialized() or not group.sends_over_gloo(torch.device(device)):
        return True
    try:
        torch.distributed.all_reduce(torch.zeros(1, dtype=torch.bfloat16, device=device))
    except RuntimeError:
        return False
    return True


def communicate(nets: list, options: Options) -> Communication | None:
    """Has the DDP objects of `nets` (parallel nets, built) send gradients as the options say; None
    where nothing is sent. Collective, once, before the first backward. Raises PlanError where
    PowerSGD does not go with the other options, or bf16 with this torch.
    """
    states = [parallel.state_of(net) for net in nets]
    states = [one for one in states if isinstance(one.parallel, DistributedDataParallel)]
    if not states:
        return None
    whole = sum(_numbers(state) for state in states) * BYTES["none"]
    if options.comm == "powersgd":
        _require_possible(options)
        return _powersgd(states, options, whole)
    if options.comm == "bf16" and not sends_bf16(str(states[0].reduced[0].device)):
        raise PlanError(
            f"ddp.comm=bf16 is not possible over gloo with torch {torch.__version__}: its gloo "
            "sends no bf16. Use ddp.comm=fp16, or leave the option at its default."
        )
    if options.comm != "none":
        for state in states:
            state.parallel.register_comm_hook(None, HOOKS[options.comm])
    sent = whole * BYTES[options.comm] // BYTES["none"]
    line = f"gradients: {_mb(sent)} a step"
    if sent == whole:
        return Communication(f"{line} from each rank, in fp32", sent, {})
    line += f" from each rank, in {options.comm} (in place of {_mb(whole)} in fp32)"
    return Communication(line, sent, {})


def _powersgd(states: list, options: Options, whole: int) -> Communication:
    rank, start = options.powersgd_rank, options.powersgd_start
    compressors = {}
    for state in states:
        compressors[state.name] = compressor = PowerSGD(rank, start)
        state.parallel.register_comm_hook(compressor.state, compressor.hook)
    sent = sum(one.bytes_of(state.reduced) for one, state in zip(compressors.values(), states))
    line = (
        f"gradients: {_mb(whole)} a step from each rank, in fp32; after step {start} "
        f"{_mb(sent)}, by PowerSGD of rank {rank}"
    )
    return Communication(line, sent, compressors)


def _require_possible(options: Options) -> None:
    reason = None
    if options.static_graph:
        reason = (
            "ddp.static_graph=true: DDP then lays its buckets out anew after the first step of "
            "every process, and a resumed run's errors would belong to other parameters"
        )
    elif options.precision == "fp16":
        reason = (
            "ddp.precision=fp16: gradients are scaled by a changing number and may overflow, and "
            "PowerSGD keeps what it could not send, an infinity for ever"
        )
    if reason is not None:
        raise PlanError(
            f"ddp.comm=powersgd does not go with {reason}. Use ddp.comm=bf16, or leave the other "
            "option at its default (for 16 bits in the nets: ddp.precision=bf16)."
        )


def _numbers(state: Any) -> int:
    return sum(parameter.numel() for parameter in state.reduced)


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"
