"""Cores and memory of this machine, or of this container or job."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The control groups of this process, and the folder with all of this machine or container."""
_CORE_LIMITS = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""Files with a group's CPU quota and period, of cgroups version 2 and of a controller of version 1;
"max" or -1 means that there is none.
"""
_MEMORY_LIMITS = {"": ("memory.max",), "memory": ("memory.limit_in_bytes",)}
"""Files with a group's limit, likewise (in version 1 "no limit" is a huge number)."""
_PATIENCE_SECONDS, NO_ANSWER = 120, "it gave no answer within"


def own_cores() -> tuple[int, ...]:
    """Return the CPU cores that this process may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many CPU cores this process may use, within a container's CPU quota."""
    return within_core_limit(len(own_cores()))


def within_core_limit(cores: int, processes: int = 1) -> int:
    """`cores` for each of `processes`, within a container's CPU quota; at least 1. (`docker --cpus`
    and Kubernetes' limits do not change the affinity mask.)
    """
    for limit in _limits(_CORE_LIMITS):
        if len(limit) == 2:
            time, period = limit
            cores = min(cores, time // max(1, period * processes))
    return max(1, cores)


def share_of_cores(cores: Sequence[int], cores_of_ranks: Sequence[Sequence[int]]) -> int:
    """Return the number of cores for the rank that may run on `cores`, which it shares with those
    of `cores_of_ranks`, all ranks of this machine, that may run on some of them. Rounded down, at
    least 1, and within a container's CPU quota.
    """
    sharing = sum(not set(cores).isdisjoint(of_rank) for of_rank in cores_of_ranks)
    return within_core_limit(len(cores) // sharing, len(cores_of_ranks))


def is_alive(process: int) -> bool:
    """Return whether there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists, and belongs to another user
    return True


def output_of(*command: str, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and output of a command, or (-1, reason) if it could not run."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
            env=variables,
        )
    except subprocess.TimeoutExpired:
        return -1, f"{NO_ANSWER} {_PATIENCE_SECONDS} s"
    except OSError as error:
        return -1, str(error)
    return done.returncode, done.stdout


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine_memory() -> int:
    """Return the memory of this machine, or of this container or Slurm job, in bytes."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    sizes += [size for limit in _limits(_MEMORY_LIMITS) for size in limit]
    return min(size for size in sizes if size > 0)


def _limits(names_of: Mapping[str, Sequence[str]]) -> Iterator[list[int]]:
    """Yield the limits of this process's control group and of those around it, each the numbers in
    its files `names_of[controller]`. Slurm and systemd limit a group inside the container's.
    """
    own_groups = dict.fromkeys(names_of, "/")
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, group = line.split(":", 2)
            own_groups |= dict.fromkeys(controllers.split(","), group)
    for controller, names in names_of.items():
        innermost = PurePosixPath(own_groups[controller])
        for group in (innermost, *innermost.parents):
            folder = _GROUPS.joinpath(controller, *group.parts[1:])
            with suppress(OSError):
                words = " ".join((folder / name).read_text(encoding="ascii") for name in names)
                if all(word.isdecimal() for word in words.split()):
                    yield [int(word) for word in words.split()]
