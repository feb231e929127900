"""Chooses the GPUs of this node's ranks, without importing torch if possible."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp.config.machine import usable_cores
from robomimic_ddp.errors import UsageError

_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
_OTHER_GPUS = ("/dev/kfd", "/dev/dxg", "/dev/nvidiactl", "/dev/nvhost-gpu")
"""AMD's, Windows' subsystem, a driver in a container without its tools, Jetson."""
_PATIENCE_SECONDS = 60
_CPU_RANKS = 16
"""Ranks that any machine may start without a GPU, however few cores it has."""


@dataclass(frozen=True)
class Devices:
    """ranks: processes on this node; visible: the new CUDA_VISIBLE_DEVICES, None to keep it; gpus:
    number of GPUs for them (0: on the CPU).
    """

    ranks: int
    visible: str | None
    gpus: int


def choose(asked: int | tuple[str, ...] | None, variables: Mapping[str, str]) -> Devices:
    """Return the devices for --gpus. Indices refer to the visible devices, as in torch.

    Raises UsageError if more are requested than visible.
    """
    visible = visible_devices(variables)
    if asked is None:
        return Devices(len(visible) or 1, None, len(visible))
    number = asked if isinstance(asked, int) else len(asked)
    text = str(asked) if isinstance(asked, int) else ",".join(asked)
    named = variables.get("CUDA_VISIBLE_DEVICES")
    because = "" if named is None else f" (CUDA_VISIBLE_DEVICES={named})"
    if not visible:
        most = max(_CPU_RANKS, usable_cores())
        if isinstance(asked, tuple) or number > most:
            raise UsageError(
                f"--gpus {text}: no GPU is visible here{because}. For a trial on the CPU give a "
                f"number of ranks, at most {most}: each takes a core and some GiB of memory."
            )
        return Devices(number, None, 0)
    last = number - 1 if isinstance(asked, int) else max(map(int, asked))
    if last >= len(visible):
        raise UsageError(
            f"--gpus {text}: no device {last} among the {len(visible)} visible GPU(s){because}, "
            "numbered from 0. Name GPUs that are there: ranks that share one are slower than one."
        )
    chosen = None if isinstance(asked, int) else ",".join(visible[int(index)] for index in asked)
    return Devices(number, chosen, number)


def visible_devices(variables: Mapping[str, str]) -> list[str]:
    """Return the names of the visible GPUs, as CUDA_VISIBLE_DEVICES spells them."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(count_gpus())]
    names = []
    for name in visible.split(","):
        if name.strip() in ("", "-1"):  # CUDA ends the list at the first invalid device
            break
        names.append(name.strip())
    numbered = bool(names) and all(map(str.isdecimal, names))
    return [] if numbered and installed_gpus() == 0 else names


def absent(variables: Mapping[str, str]) -> str:
    """Return which numbers in CUDA_VISIBLE_DEVICES this node has no GPU for, or "". UUIDs and names
    of MIG instances pass, and so does a node whose GPUs cannot be counted.
    """
    if "CUDA_VISIBLE_DEVICES" not in variables:
        return ""
    numbers = [name for name in visible_devices(variables) if name.isdecimal()]
    count = installed_gpus() if numbers else None
    missing = [number for number in numbers if count and int(number) >= count]
    if not missing:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']} names GPU {', '.join(missing)}, "
        f"and this node has {count}, numbered from 0: CUDA would hide that one and all after it. "
        "Name GPUs that nvidia-smi lists."
    )


def count_gpus() -> int:
    """Return the number of GPUs of this node: by nvidia-smi, else the driver, else torch."""
    count = installed_gpus()
    if count is None:  # AMD's, which torch calls CUDA as well
        text = _output(sys.executable, "-c", "import torch; print(torch.cuda.device_count())")
        return int(text) if text.strip().isdecimal() else 0
    return count


@functools.cache
def installed_gpus() -> int | None:
    """Return count_gpus() without torch; None where only torch could count them. Counts once."""
    listed = _output("nvidia-smi", "--list-gpus")
    if listed:
        return sum(line.startswith("GPU ") for line in listed.splitlines())
    if _DRIVER_FOLDER.is_dir():
        return len(list(_DRIVER_FOLDER.iterdir()))
    return None if any(Path(device).exists() for device in _OTHER_GPUS) else 0


def _output(*command: str) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""
