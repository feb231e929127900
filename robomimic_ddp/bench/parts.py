"""What `bench scale` asks a process of the benchmark for: a step's parts, its bytes, an all-reduce.

Imported in that process only, where torch and the host are.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp import run
from robomimic_ddp.options import FIELDS
from robomimic_ddp.step.communication import BYTES
from robomimic_ddp.step.powersgd import PowerSGD
from robomimic_ddp.swapping import swapped


def step_in_parts(loop: Any) -> dict[str, float]:
    """Collective on several ranks: seconds of a step before its backward pass, of that pass, and
    after it (the gradient's norm, the optimizer, averages, the log).
    """
    began, ended = [], []
    backward = torch.Tensor.backward

    def timed(*args: Any, **kwargs: Any) -> None:
        began.append(time.perf_counter())
        backward(*args, **kwargs)
        ended.append(time.perf_counter())

    start = time.perf_counter()
    with swapped(torch.Tensor, "backward", timed):
        loop.step()
    stop = time.perf_counter()
    return {
        "forward": began[0] - start,
        "backward": ended[-1] - began[0],
        "rest": stop - ended[-1],
        "wall": stop - start,
    }


def bytes_sent(nets: torch.nn.Module) -> dict[str, int]:
    """Bytes of gradients that a rank gives to all-reduces in a step, by `ddp.comm`; `chosen`: as it
    is in this process.
    """
    learning = [one for one in nets.parameters() if one.requires_grad]
    numbers = sum(one.numel() for one in learning)
    sent = {name: numbers * size for name, size in BYTES.items()}
    rank, start = FIELDS["powersgd_rank"].default, FIELDS["powersgd_start"].default
    sent["powersgd"] = PowerSGD(rank, start).bytes_of(learning)
    present = run.current()
    ours = None if present is None else present.communication
    return {**sent, "chosen": sent["none"] if ours is None else ours.bytes_per_step}


def all_reduce(size: int) -> dict[str, float]:
    """Collective: seconds of one all-reduce of `size` bytes, from when all ranks have come."""
    numbers = torch.zeros(max(1, size // 4))
    dist.all_reduce(torch.zeros(1))
    start = time.perf_counter()
    dist.all_reduce(numbers)
    return {"wall": time.perf_counter() - start}
