"""The rows and lines of `bench step` in one process."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from robomimic_ddp.bench.step import BASE, VARIANTS, Job, Steps

_RESAMPLES = 2000


def rows(job: Job, measured: Mapping[str, Steps], variants: Mapping = VARIANTS) -> list[dict]:
    """One row for each variant, by medians."""
    found = []
    for name, steps in measured.items():
        seconds = statistics.median(steps.wall)
        row = {
            "variant": BASE if variants[name] is None else "ours",
            "world": 1,
            "options": dict(variants[name] or {}),
            "parameters": steps.parameters,
            "steps_per_second": 1 / seconds,
            "samples_per_second": steps.samples / seconds,
            "cpu_seconds_per_step": statistics.median(steps.cpu),
            "peak_rss_mb": steps.peak_rss_mb,
            "comm_share": 0.0,
        }
        if steps.device:
            row.update(
                device=job.device,
                cameras=job.cameras,
                kernel_launches=steps.device["launches"],
                kernels=steps.device["kernels"],
                device_busy_share=min(1.0, steps.device["busy"] / seconds),
                device_peak_mb=steps.device["peak_mb"],
            )
        found.append(row)
    return found


def table(names: Iterable[str], found: Sequence[dict]) -> Iterator[str]:
    """Lines for the terminal; `names` of the rows."""
    width = max(12, *map(len, names := list(names)))
    head = (
        f"{'variant':{width}} {'steps/s':>8} {'samples/s':>10} {'CPU s/step':>11} {'peak RSS':>9}"
    )
    on_gpu = "kernel_launches" in found[0]
    yield head + (f" {'launches':>9} {'GPU busy':>9} {'peak GPU':>9}" if on_gpu else "")
    for name, row in zip(names, found):
        line = (
            f"{name:{width}} {row['steps_per_second']:8.3f} "
            f"{row['samples_per_second']:10.1f} {row['cpu_seconds_per_step']:11.3f} "
            f"{row['peak_rss_mb']:6.0f} MB"
        )
        if on_gpu:
            line += (
                f" {row['kernel_launches']:9} {row['device_busy_share']:9.0%} "
                f"{row['device_peak_mb']:6.0f} MB"
            )
        yield line
    yield f"{found[0]['parameters'] / 1e6:.1f} M parameters"


def ratios(measured: Mapping[str, Steps]) -> Iterator[str]:
    """How many times as fast as the host each variant is: medians over rounds with an interval of
    95 % (resampled rounds).
    """
    base = measured[BASE]
    for name, steps in measured.items():
        if name == BASE:
            continue
        for what in ("wall", "cpu"):
            each = [a / b for a, b in zip(getattr(base, what), getattr(steps, what))]
            low, high = interval(each)
            clock = "by the clock" if what == "wall" else "of processor time"
            yield (
                f"{name}: {statistics.median(each):.2f} times the host's steps per second {clock} "
                f"(95 %: {low:.2f} to {high:.2f}, {len(each)} rounds)"
            )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, from resampled values; the same for the same values."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
