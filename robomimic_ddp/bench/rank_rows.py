"""The rows and lines of `bench step --ranks N`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from robomimic_ddp.bench.ranks import PACKAGES, Measured
from robomimic_ddp.bench.step_rows import interval
from robomimic_ddp.bench.team import OURS, Job


def rows(found: Sequence[Measured]) -> list[dict]:
    """One row for each variant that ran, by medians; of the others `skipped` says why."""
    made = []
    for one in found:
        row = {"variant": one.variant.name, "world": one.world, "options": one.variant.options}
        if one.missing:
            made.append({**row, "skipped": one.missing})
            continue
        rate = 1 / statistics.median(one.wall)
        row.update(
            parameters=one.parameters,
            steps_per_second=rate,
            samples_per_second=rate * one.samples * one.world,
            cpu_seconds_per_step=statistics.median(one.cpu),
            peak_rss_mb=one.peak_rss_mb,
            comm_share=one.exposed,
            tensor_mb={kind: size / 1e6 for kind, size in one.tensor_bytes.items()},
        )
        if one.sent:
            row["sent_mb"] = one.sent["chosen"] / 1e6
        if one.reducing:
            row["reducing_share"], row["overlap"] = _reducing(one), _overlap(one)
        if one.ratios:
            low, high = interval(one.ratios)
            row["ours_step_time_over_its"] = {
                "median": 1 / statistics.median(one.ratios),
                "low": 1 / high,
                "high": 1 / low,
                "pairs": len(one.ratios),
            }
        made.append(row)
    return made


def _reducing(one: Measured) -> float:
    """Share of a step in which an all-reduce ran, by the profiler; the last of its steps, since the
    first one starts it.
    """
    last = one.reducing[-1]
    return last["reducing"] / last["wall"]


def _overlap(one: Measured) -> float:
    """Share of the all-reduces' time that ran beside computation."""
    reducing = _reducing(one)
    return max(0.0, 1 - one.exposed / reducing) if reducing else 0.0


def lines(job: Job, found: Sequence[Measured]) -> Iterator[str]:
    """Lines for the terminal."""
    told = rows(found)
    width = max(26, *(len(one.variant.label) for one in found))
    yield (
        f"{'variant':{width}} {'ranks':>5} {'steps/s':>8} {'samples/s':>10} {'CPU s/step':>11} "
        f"{'peak RSS':>10} {'tensors':>10}"
    )
    for one, row in zip(found, told):
        if one.missing:
            installed = one.variant.name not in PACKAGES
            remedy = "" if installed else " (pip install '.[bench]' in the checkout)"
            yield f"{one.variant.label:{width}} skipped: {one.missing}{remedy}"
            continue
        yield (
            f"{one.variant.label:{width}} {one.world:5} {row['steps_per_second']:8.3f} "
            f"{row['samples_per_second']:10.1f} {row['cpu_seconds_per_step']:11.3f} "
            f"{row['peak_rss_mb']:7.0f} MB {sum(row['tensor_mb'].values()):7.0f} MB"
        )
    yield f"{found[0].parameters / 1e6:.1f} M parameters, {job.batch} samples on each rank"
    for one, row in zip(found, told):
        yield from _comparison(one, row, found[0].samples)
    for one, row in zip(found, told):
        if one.local:
            yield (
                f"{one.variant.label}: all-reduces lengthen a step by {row['comm_share']:.0%} of "
                f"it; they run in {row['reducing_share']:.0%} of it by the profiler, "
                f"{row['overlap']:.0%} of that beside computation; {row['sent_mb']:.3g} MB sent"
            )
    yield from _memory(found)


def _comparison(one: Measured, row: dict, samples: int) -> Iterator[str]:
    if not one.ratios:
        return
    ratio = row["ours_step_time_over_its"]
    ends = f"95 %: {ratio['low']:.3f} to {ratio['high']:.3f}, {ratio['pairs']} pairs"
    more = "" if one.samples == samples else f", which has {one.samples} samples on each rank"
    yield f"a step of ours takes {ratio['median']:.3f} of one of {one.variant.label}{more} ({ends})"


def _memory(found: Sequence[Measured]) -> Iterator[str]:
    sums = {one.variant.label: sum(one.tensor_bytes.values()) for one in found}
    tutorial, ours = sums.get("tutorial_ddp"), sums[OURS]
    for one in found:
        if one.tensor_bytes:
            kinds = ", ".join(f"{kind} {size / 1e6:.0f}" for kind, size in one.tensor_bytes.items())
            yield f"{one.variant.label}: MB of tensors on a rank: {kinds}"
    if tutorial:
        peaks = {one.variant.label: one.peak_rss_mb for one in found}
        yield (
            f"tensor bytes of ours over two DDP nets with a deep copy: {ours / tutorial:.3f} (peak "
            f"RSS {peaks[OURS]:.0f} MB and {peaks['tutorial_ddp']:.0f} MB)"
        )
