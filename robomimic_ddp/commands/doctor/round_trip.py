"""A rank of `doctor --ranks N`: times a round trip and the all-reduce of a policy's gradients."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from robomimic_ddp.commands.doctor.ranks import PATIENCE_SECONDS
from robomimic_ddp.config import env, parallel_mode
from robomimic_ddp.distributed import group

PARAMETERS = 67_000_000
"""Parameters of the hosts' default diffusion policy."""
_ROUND_TRIPS, _ALL_REDUCES = 50, 3


def main(answer: str) -> None:
    """Collective: the main rank writes medians to the file `answer`. The group is training's."""
    launch = env.read_launch_env()
    gpus = torch.cuda.device_count()
    name = parallel_mode.local_device(launch, gpus) if gpus else "cpu"
    backend = parallel_mode.backend_for(name)
    with group.process_group(backend, PATIENCE_SECONDS / 2, device=name):
        _measure(answer, launch, torch.device(name), backend)


def _measure(answer: str, launch: env.LaunchEnv, device: torch.device, backend: str) -> None:
    one, all_gradients = torch.ones(1, device=device), torch.ones(PARAMETERS, device=device)
    round_trip = _median_ms(lambda: dist.all_reduce(one), _ROUND_TRIPS, device)
    all_reduce = _median_ms(lambda: dist.all_reduce(all_gradients), _ALL_REDUCES, device)
    expected = float(launch.world_size) ** (_ALL_REDUCES + 1)  # + 1: the first one is not timed
    if not bool((all_gradients == expected).all()):
        raise RuntimeError(f"an all-reduce gave {all_gradients[0].item()}, expected {expected}")
    if launch.rank == 0:
        found = {
            "backend": backend,
            "round_trip_ms": round_trip,
            "megabytes": all_gradients.numel() * all_gradients.element_size() / 1e6,
            "all_reduce_ms": all_reduce,
        }
        Path(answer).write_text(json.dumps(found), encoding="utf-8")
    group.barrier()


def _median_ms(call: Callable[[], object], times: int, device: torch.device) -> float:
    taken = []
    for _ in range(times + 1):
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    main(sys.argv[1])
