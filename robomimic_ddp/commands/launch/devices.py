"""Counts the GPUs of this node, without importing torch if possible."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp.config import env, machine
from robomimic_ddp.errors import UsageError

_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/kfd", "/dev/dxg")
"""Files of NVIDIA (a container may lack nvidia-smi), Jetson, AMD and WSL."""
_DEVICE = re.compile(r"\d|GPU-|MIG-")
"""The start of what CUDA takes for a device: not NoDevFiles, which Slurm gives jobs without one."""
_CPU_RANKS = 16
"""The number of ranks that may start without a GPU, however few cores the machine has."""


def ranks(requested: int | None, variables: Mapping[str, str], flag: str = "--gpus") -> int:
    """Return the number of ranks of this node for `flag`: one on each visible GPU if it is None.

    Raises UsageError if more are requested than visible.
    """
    visible = len(visible_devices(variables))
    most = visible or most_on_cpu()
    if requested is None or requested <= most:
        return requested or visible or 1
    value = variables.get("CUDA_VISIBLE_DEVICES")
    cause = "" if value is None else f" (CUDA_VISIBLE_DEVICES={value})"
    if visible:
        raise UsageError(
            f"{flag} {requested}: {visible} GPU(s) are visible{cause}. Give a number up to "
            f"{visible}: ranks that share a GPU are slower than a single rank."
        )
    raise UsageError(
        f"{flag} {requested}: no GPU is visible here{cause}. For a trial on the CPU give at most "
        f"{most}: each rank needs a core and a few GiB of memory."
    )


def most_on_cpu() -> int:
    """Return how many ranks may start on this machine's CPU."""
    return max(_CPU_RANKS, machine.usable_cores())


def visible_devices(variables: Mapping[str, str]) -> list[str]:
    """Return the names of the visible GPUs, as CUDA_VISIBLE_DEVICES spells them. Raises UsageError
    for a number that no GPU of this node has; UUIDs and names of MIG instances pass.
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(installed_gpus())]
    names = [name.strip() for name in visible.split(",")]
    # CUDA ends the list at the first invalid device.
    names = list(itertools.takewhile(_DEVICE.match, names))
    numbers = [name for name in names if name.isdecimal()]
    if numbers and installed_gpus() == 0:
        return []
    missing = [number for number in numbers if int(number) >= installed_gpus()]
    if missing:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={visible} names GPU {', '.join(missing)}, and this node has "
            f"{installed_gpus()}, numbered from 0: CUDA would hide it and all GPUs after it. "
            "Name GPUs that nvidia-smi lists."
        )
    return names


@functools.cache
def installed_gpus() -> int:
    """Return the number of GPUs of this node, counted once: by nvidia-smi, else by torch."""
    code, listed = machine.output_of("nvidia-smi", "--list-gpus")
    if code == 0 and listed:
        return sum(line.startswith("GPU ") for line in listed.splitlines())
    if not any(Path(file).exists() for file in _DEVICE_FILES):
        return 0
    variables = {k: v for k, v in env.variables().items() if k != "CUDA_VISIBLE_DEVICES"}
    program = "import torch; print(torch.cuda.device_count())"
    code, text = machine.output_of(sys.executable, "-c", program, variables=variables)
    count = (text.split() or [""])[-1]  # after torch's warnings
    return int(count) if code == 0 and count.isdecimal() else 0
