"""The rows and lines of `bench scale`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.bench import model
from robomimic_ddp.bench.model import Cluster, Step
from robomimic_ddp.bench.scale import SIZES, Checked

COLUMNS = (2, 8, 64, 256, 1024)
"""Numbers of GPUs in the terminal; JSON and the picture have all of them."""


@dataclass(frozen=True)
class Question:
    """What the model is asked: `step` on each GPU, `samples` on each (weak), `total` over all
    (strong), over `clusters`, with `algorithm`; `origin`: where the step's times are from.
    """

    step: Step
    samples: int
    total: int
    clusters: dict[str, Cluster]
    algorithm: str
    origin: str
    comm: str


def rows(question: Question) -> list[dict[str, Any]]:
    """One row for each cluster and number of GPUs. All of it is modelled."""
    found = []
    for name, cluster in question.clusters.items():

        def reduce(size: float, world: int, cluster: Cluster = cluster) -> float:
            return cluster.all_reduce(size, world, question.algorithm)

        for world in model.WORLDS:
            step, samples = question.step, question.samples
            seconds = step.seconds(samples, world, reduce)
            found.append(
                {
                    "kind": "modelled",
                    "cluster": name,
                    "world": world,
                    "algorithm": question.algorithm,
                    "comm": question.comm,
                    "gradient_bytes": step.size,
                    "step_seconds": seconds,
                    "compute_seconds": step.compute(samples),
                    "exposed_seconds": seconds - step.compute(samples),
                    "all_reduce_seconds": reduce(step.size, world),
                    "weak_efficiency": model.weak(step, samples, world, reduce),
                    "strong_efficiency": model.strong(step, question.total, world, reduce),
                    "least_compute_seconds": model.least_compute(step, samples, world, reduce),
                }
            )
    return found


def assumptions(question: Question) -> Iterator[str]:
    """All that the table rests on, a line each."""
    step, samples = question.step, question.samples
    yield "Measured or given:"
    yield (
        f"  a step computes {1e3 * step.compute(samples):.4g} ms with {samples} samples: "
        f"{1e3 * step.fixed:.4g} ms whatever the batch, {1e3 * step.per_sample:.4g} ms a sample, "
        f"{step.backward_share:.0%} of that in the backward pass ({question.origin})"
    )
    yield (
        f"  {step.size / 1e6:.4g} MB of gradients a step into all-reduces (ddp.comm="
        f"{question.comm}), in buckets of {step.bucket / 2**20:g} MiB"
    )
    yield "Assumed:"
    yield (
        "  ring: 2 (p - 1) (latency + n / p / bandwidth); tree: 2 log2(p) latency + 2 n / "
        f"bandwidth; here: {question.algorithm}; within and between nodes one after the other"
    )
    yield (
        f"  sending is free in {step.overlap:.0%} of the backward pass; buckets are of one size, "
        "ready at equal distances, sent in turn; the last one is never hidden"
    )
    yield (
        f"  weak: {samples} samples on each GPU; strong: {question.total} over all, forward and "
        "backward shrink as the batch does, the rest stays; every GPU is as quick as every other,"
    )
    yield "  nothing else uses the links, and data arrive in time"
    for link in dict.fromkeys(
        link for one in question.clusters.values() for link in (one.inside, one.between)
    ):
        yield (
            f"  {link.name}: {1e6 * link.latency:.3g} us, {link.bandwidth / 1e9:.4g} GB/s "
            f"({link.source})"
        )


def table(question: Question, found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Efficiencies, modelled."""
    for title, column, shown in (
        ("weak efficiency", "weak_efficiency", "{:9.1%}"),
        ("strong efficiency", "strong_efficiency", "{:9.1%}"),
        ("ms that a step must compute for a weak efficiency of 90 %", "least_compute_seconds", ""),
    ):
        yield f"{title} (modelled)"
        yield f"  {'GPUs':38}" + "".join(f"{world:9}" for world in COLUMNS)
        for name, cluster in question.clusters.items():
            told = {row["world"]: row[column] for row in found if row["cluster"] == name}
            cells = (_cell(told[world], shown) for world in COLUMNS)
            yield f"  {cluster.name:38}" + "".join(cells)


def _cell(value: float | None, shown: str) -> str:
    if value is None:
        return f"{'-':>9}"
    return shown.format(value) if shown else f"{1e3 * value:9.3g}"


def checked_rows(found: Sequence[Checked]) -> list[dict[str, Any]]:
    """One row for each number of gloo ranks: measured beside predicted."""
    return [
        {
            "kind": "checked",
            "world": one.world,
            "step_seconds": one.whole,
            "local_step_seconds": one.local,
            "predicted_seconds": one.predicted,
            "error": one.error,
            "predicted_from_fewest_seconds": one.from_two,
            "error_from_fewest": one.error_from_two,
            "overlap": one.overlap,
            "latency": one.link.latency,
            "bandwidth": one.link.bandwidth,
            "all_reduce_seconds": dict(zip(map(str, SIZES), one.reduces)),
        }
        for one in found
    ]


def check_lines(found: Sequence[Checked]) -> Iterator[str]:
    """The model against gloo ranks on this machine."""
    if not found:
        return
    sizes = " and ".join(f"{size / 2**20:.4g} MiB" for size in SIZES)
    yield (
        "The model against gloo ranks on this machine. Measured: the step, the step without "
        "sending (ranks share the"
    )
    yield (
        f"cores, so it is slower with more of them), all-reduces of {sizes}. Predicted from the "
        "last two: the step."
    )
    yield (
        f"{'ranks':>7} {'alone ms':>9} {'latency us':>11} {'GB/s':>7} {'overlap':>8} "
        f"{'predicted ms':>13} {'measured ms':>12} {'error':>7}   with the link of "
        f"{found[0].world} ranks"
    )
    for one in found:
        yield (
            f"{one.world:7} {1e3 * one.local:9.1f} {1e6 * one.link.latency:11.0f} "
            f"{one.link.bandwidth / 1e9:7.3f} {one.overlap:8.0%} {1e3 * one.predicted:13.1f} "
            f"{1e3 * one.whole:12.1f} {one.error:+7.1%}   {1e3 * one.from_two:.1f} ms, "
            f"{one.error_from_two:+.1%}"
        )
