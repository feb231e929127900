"""How gradients travel between ranks: in fp32, in 16 bits, or compressed, by torch's own hooks.

PowerSGD (Vogels et al., NeurIPS 2019) adds to a gradient what earlier steps could not send. This
error feedback is not saved: it begins again where a run is resumed.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import PlanError

_IN_16_BITS = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}
POWERSGD_START = 1000
"""Steps of the process with complete gradients before PowerSGD begins, as many as in torch; at
least 2, since DDP rebuilds its buckets after the first one.
"""
_EPSILON = 1e-8
"""Added to the length of a column, which is 0 where a complete gradient is."""


def sends_bf16(device: str) -> bool:
    """Collective: returns whether `device` can send bf16, which torch 2.0's gloo refuses."""
    if not group.is_initialized() or not group.sends_over_gloo(torch.device(device)):
        return True
    try:
        torch.distributed.all_reduce(torch.zeros(1, dtype=torch.bfloat16, device=device))
    except RuntimeError:
        return False
    return True


def communicate(reducers: list, options: Options) -> str | None:
    """Make the DDP objects of `reducers` (`optimizer_ddp.reducers`, built) send gradients as the
    options say, and return the plan's line; None where nothing is sent.

    Collective, once, before the first backward. Raises PlanError where PowerSGD does not go with
    fp16, or bf16 with this torch.
    """
    states = [state for state in reducers if isinstance(state.parallel, DistributedDataParallel)]
    flat = [state for state in reducers if state.parallel is None and state.reduced]
    if not states and not flat:
        return None
    _require_possible(options, str((states or flat)[0].reduced[0].device))
    size = 4 * sum(p.numel() for state in [*states, *flat] for p in state.reduced)
    rank = options.powersgd_rank
    for state in states:
        if rank is not None:
            powersgd = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=POWERSGD_START,
                orthogonalization_epsilon=_EPSILON,
            )
            state.parallel.register_comm_hook(powersgd, _powersgd_hook)
        elif options.comm != "none":
            state.parallel.register_comm_hook(None, _IN_16_BITS[options.comm])
    in_fp32 = f"gradients: {_mb(size)} a step from each rank, in fp32"
    if rank is not None:
        return (
            f"{in_fp32}; compressed by PowerSGD of rank {rank} after {POWERSGD_START} steps, in a "
            "resumed run too, since its error feedback is not saved"
        )
    if options.comm == "none":
        return in_fp32
    return (
        f"gradients: {_mb(size // 2)} a step from each rank, in {options.comm} (in place of "
        f"{_mb(size)} in fp32)"
    )


def _require_possible(options: Options, device: str) -> None:
    if options.comm == "bf16" and not sends_bf16(device):
        raise PlanError(
            f"ddp.comm=bf16 is not possible over gloo with torch {torch.__version__}: its gloo "
            "cannot send bf16. Use ddp.comm=fp16, or leave the option at its default."
        )
    if options.powersgd_rank is not None and options.precision == "fp16":
        raise PlanError(
            f"ddp.comm={options.comm} does not go with ddp.precision=fp16: its scaled gradients "
            "may overflow, and PowerSGD's error feedback would carry that infinity into all later "
            "steps. Use ddp.comm=bf16, or ddp.precision=bf16."
        )


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"


def _powersgd_hook(state, bucket):  # DDP refuses annotations that are text
    """Collective: torch's hook, which leaves the random streams as they were.

    Over gloo it waits for the bucket. The hook's later messages start in gloo's threads: with two
    buckets under way, ranks would send them in different orders, and the threads, waiting for each
    other, would never end. (NCCL runs these continuations at once.)
    """
    if state.iter < state.start_powerSGD_iter:
        return powerSGD_hook.powerSGD_hook(state, bucket)
    device = bucket.buffer().device
    with ExitStack() as stack:
        if bucket.index() not in state.p_memory_dict:
            # torch's hook draws a bucket's first factors. It seeds every GPU's generator for them,
            # alike on all ranks, and restores only the CPU's: all would draw the same noise then.
            on_gpus = torch.cuda.is_available() and torch.cuda.is_initialized()
            gpus = list(range(torch.cuda.device_count())) if on_gpus else []
            stack.enter_context(torch.random.fork_rng(devices=gpus))
        if device.type == "cpu":
            # It also waits for `device` on every machine that has a GPU, and fails for the CPU.
            stack.enter_context(swapped(torch.cuda, "is_available", lambda: False))
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        if group.sends_over_gloo(device):
            future.wait()
    return future
