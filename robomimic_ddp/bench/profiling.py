"""What torch's profiler tells of one step: all-reduces, and a GPU's kernels."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchCooperativeKernel")
"""Beginnings of the names of calls by which a program starts kernels; one call replays a graph."""
_NO_KERNELS = ("Memcpy", "Memset")


def is_on_gpu(loop: Any) -> bool:
    """Whether a loop's net is on a CUDA device."""
    return torch.device(loop.model.device).type == "cuda"


def profiled(loop: Any) -> dict[str, float]:
    """Collective on several ranks: seconds of a step, and seconds of it in which an all-reduce ran.

    On a CUDA device also what `on_device` tells, and `peak_mb`, the most that tensors have held.
    """
    on_gpu, activities = is_on_gpu(loop), [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    with profile(activities=activities) as found:
        wall = time.perf_counter()
        loop.step()
        if on_gpu:
            torch.cuda.synchronize()
        wall = time.perf_counter() - wall
    events = found.events()
    reducing = (
        one for one in events if "all_reduce" in one.name or "allreduce" in one.name.lower()
    )
    told = {"wall": wall, "reducing": covered(ranges_of(reducing))}
    if on_gpu:
        told.update(on_device(events), peak_mb=torch.cuda.max_memory_allocated() / 1e6)
    return told


def on_device(events: Iterable[Any]) -> dict[str, float]:
    """Of a profiler's events: `launches`, calls that start kernels; `kernels` that ran; `busy`,
    seconds in which the device ran a kernel or copied.
    """
    events = list(events)
    ran = [
        one
        for one in events
        if one.device_type == DeviceType.CUDA and not getattr(one, "is_user_annotation", False)
    ]
    calls = [
        one for one in events if one.device_type == DeviceType.CPU and one.name.startswith(LAUNCHES)
    ]
    kernels = [one for one in ran if not one.name.startswith(_NO_KERNELS)]
    return {"launches": len(calls), "kernels": len(kernels), "busy": covered(ranges_of(ran))}


def ranges_of(events: Iterable[Any]) -> list[tuple[float, float]]:
    """(start, end) of each event, in seconds."""
    return [(one.time_range.start / 1e6, one.time_range.end / 1e6) for one in events]


def covered(ranges: list[tuple[float, float]]) -> float:
    """Length of the union of (start, end) ranges."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(ranges):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
