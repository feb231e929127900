"""`doctor --ranks N`: starts N ranks, which time a round trip and the all-reduce of a policy's
gradients.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from robomimic_ddp.commands.doctor.findings import Context, Finding, fail, ok
from robomimic_ddp.commands.launch import devices
from robomimic_ddp.config import env, launch_env, machine
from robomimic_ddp.config.planning import parallel_mode
from robomimic_ddp.distributed import known_errors, rendezvous
from robomimic_ddp.terminal import announce, print_clean

TIMEOUT_SECONDS = 60
"""The limit of collectives: less than doctor's for the job, so that the ranks end by themselves."""
PARAMETERS = 67_000_000
"""Parameters of the hosts' default diffusion policy."""
_ROUND_TRIPS, _ALL_REDUCES = 50, 3
_ANSWER = r"over \S+: round trip .* ms"


def check_ranks(context: Context) -> Iterator[Finding]:
    ranks, gpus = context.ranks, len(context.gpus)
    if ranks is None:
        return
    if "error" in context.torch:
        message = f"--ranks {ranks}: no rank was started, since torch cannot be imported"
        yield fail(message, "See the check of torch above.")
        return
    most = gpus or devices.most_on_cpu()
    if ranks > most:
        yield fail(f"--ranks {ranks} with {gpus} visible GPU(s)", f"Use at most {most} ranks.")
        return
    launcher = ["-m", "torch.distributed.run", *rendezvous.on_this_machine()]
    program = [f"--nproc_per_node={ranks}", "-m", "robomimic_ddp.commands.doctor.round_trip"]
    announce(f"starting {ranks} rank(s)")
    variables = launch_env.without_rank(env.variables())
    code, text = machine.output_of(sys.executable, *launcher, *program, variables=variables)
    if code == 0 and (answer := re.search(_ANSWER, text)):
        yield ok(f"{ranks} rank(s) {answer[0]}")
        return
    message = (
        f"the job of {ranks} rank(s) ended with exit code {code}: {known_errors.error_line(text)}"
    )
    usual = "The usual causes are a firewall between the ranks and a wrong *_SOCKET_IFNAME."
    yield fail(message, known_errors.remedy(text) or usual)


def measure() -> None:
    """Collective: time a group like that of training. The main rank prints the medians."""
    import torch

    from robomimic_ddp.distributed import group

    launch, gpus = launch_env.read_launch_env(), torch.cuda.device_count()
    name = parallel_mode.local_device(launch, gpus) if gpus else "cpu"
    backend = parallel_mode.backend_for(name, "auto")
    with group.process_group(backend, TIMEOUT_SECONDS, device=name):
        number, gradients = (torch.empty(size, device=name) for size in (1, PARAMETERS))
        round_trip = _median_ms(number, _ROUND_TRIPS)
        all_reduce = _median_ms(gradients, _ALL_REDUCES)
        if not bool((gradients == launch.world_size).all()):
            raise RuntimeError(
                f"an all-reduce gave {gradients[0].item()}, expected {launch.world_size}"
            )
        if launch.rank == 0:
            print_clean(
                f"over {backend}: round trip {round_trip:.2f} ms, all-reduce of "
                f"{4 * PARAMETERS / 1e6:.0f} MB (the gradients of a 67 M policy) "
                f"{all_reduce:.0f} ms"
            )
        group.barrier()


def _median_ms(tensor: Any, times: int) -> float:
    """Collective: return the median time of `times` all-reduces of ones, after one to warm up."""
    import torch
    import torch.distributed as dist

    durations = []
    wait = torch.cuda.synchronize if tensor.is_cuda else lambda: None
    for _ in range(times + 1):
        tensor.fill_(1)  # sums of sums would soon be more than float32 has exactly
        wait()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        wait()
        durations.append((time.perf_counter() - start) * 1e3)
    return statistics.median(durations[1:])


if __name__ == "__main__":
    measure()
