"""How long a step takes on many ranks, by a latency-bandwidth model: arithmetic only.

A message of n bytes takes latency + n / bandwidth (Hockney 1994). Of that are made the ring
all-reduce (Patarasuk and Yuan 2009) and the pipelined double binary tree (Sanders, Speck and Traeff
2009; NCCL since 2.4). Gradients go in buckets, one after the other, while the backward pass goes
on. Times in seconds, sizes in bytes, bandwidths in bytes per second and direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

WORLDS = tuple(2**power for power in range(1, 11))
ALGORITHMS = ("best", "ring", "tree")


@dataclass(frozen=True)
class Link:
    """What joins two neighbours: `latency` of a message and `bandwidth` that collectives reach, for
    each GPU; `source` says where the numbers are from.
    """

    name: str
    latency: float
    bandwidth: float
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """Nodes of `gpus_per_node` GPUs joined by `inside`; nodes by `between`, whose bandwidth is
    that of a node's port; a node has `ports`. One GPU a node: `between` joins all.
    """

    name: str
    inside: Link
    between: Link
    gpus_per_node: int = 1
    ports: int = 1

    def all_reduce(self, size: float, world: int, algorithm: str = "best") -> float:
        """Of `size` bytes over `world` GPUs, which fill node after node. Within a node and between
        nodes: scattered sums inside, each GPU's part between, gathered inside.
        """
        reduce = REDUCES[algorithm]
        inside = min(world, self.gpus_per_node)
        nodes = -(-world // self.gpus_per_node)
        taken = reduce(self.inside, size, inside)
        if nodes > 1:
            share = min(1.0, self.ports / inside)
            link = replace(self.between, bandwidth=self.between.bandwidth * share)
            taken += reduce(link, size / inside, nodes)
        return taken


def ring(link: Link, size: float, world: int) -> float:
    """Seconds of a ring all-reduce: 2 (p - 1) messages of n / p bytes, one after the other."""
    if world == 1:
        return 0.0
    return 2 * (world - 1) * (link.latency + size / world / link.bandwidth)


def tree(link: Link, size: float, world: int) -> float:
    """Seconds of a pipelined double binary tree: up and down log2 p levels, all bytes once each."""
    if world == 1:
        return 0.0
    return 2 * math.ceil(math.log2(world)) * link.latency + 2 * size / link.bandwidth


def best(link: Link, size: float, world: int) -> float:
    """The quicker of both, as NCCL chooses by a table of its own."""
    return min(ring(link, size, world), tree(link, size, world))


REDUCES: dict[str, Callable[[Link, float, int], float]] = {
    "ring": ring,
    "tree": tree,
    "best": best,
}


@dataclass(frozen=True)
class Step:
    """One optimizer update on one GPU.

    per_sample: of forward and backward, for each sample; fixed: what no batch shortens (the
    optimizer, averages, what a forward and backward of no sample would take); backward_share: of
    forward and backward; size: bytes given to all-reduces, in buckets of `bucket` bytes; overlap:
    share of the backward pass in which sending is free, 0 to 1.
    """

    per_sample: float
    fixed: float
    backward_share: float
    size: float
    bucket: float = 25 * 2**20
    overlap: float = 1.0

    def compute(self, samples: float) -> float:
        """Seconds without sending."""
        return self.fixed + self.per_sample * samples

    def backward(self, samples: float) -> float:
        """Seconds of it in the backward pass."""
        return self.backward_share * self.per_sample * samples

    def window(self, samples: float) -> float:
        """Seconds of it in which gradients can be on their way."""
        return self.overlap * self.backward(samples)

    def seconds(self, samples: float, world: int, reduce: Callable[[float, int], float]) -> float:
        """Of a step with `samples` on each of `world` GPUs; `reduce(bytes, world)`: seconds."""
        if world == 1:
            return self.compute(samples)
        buckets = max(1, math.ceil(self.size / self.bucket))
        each = reduce(self.size / buckets, world)
        return self.compute(samples) + exposed(buckets, each, self.window(samples))


def exposed(buckets: int, each: float, window: float) -> float:
    """Seconds that sending goes on after the backward pass. Equal buckets are ready at equal
    distances, the last one at its end; they are sent one after the other, `each` seconds long.
    """
    return max(each, buckets * each - window * (buckets - 1) / buckets)


def weak(step: Step, samples: float, world: int, reduce: Callable[[float, int], float]) -> float:
    """Efficiency with `samples` on each GPU: the step on one GPU over the step on `world`."""
    return step.compute(samples) / step.seconds(samples, world, reduce)


def strong(
    step: Step, total: float, world: int, reduce: Callable[[float, int], float]
) -> float | None:
    """Efficiency with `total` samples a step over all GPUs; None beyond one GPU a sample."""
    if total < world:
        return None
    return step.compute(total) / (world * step.seconds(total / world, world, reduce))


def least_compute(
    step: Step,
    samples: float,
    world: int,
    reduce: Callable[[float, int], float],
    efficiency: float = 0.9,
) -> float:
    """How long a GPU's step must at least compute, its parts in the same proportion, for a weak
    efficiency of `efficiency`.
    """

    def scaled(factor: float) -> Step:
        return replace(step, per_sample=step.per_sample * factor, fixed=step.fixed * factor)

    low, high = 0.0, 1.0
    while weak(scaled(high), samples, world, reduce) < efficiency and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = weak(scaled(middle), samples, world, reduce) >= efficiency if middle else False
        low, high = (low, middle) if enough else (middle, high)
    return scaled(high).compute(samples)


def fitted(sizes: tuple[float, float], seconds: tuple[float, float], world: int, name: str) -> Link:
    """The link under which a ring all-reduce of each size takes what was measured; latency and
    bandwidth that the measurements would have below 0 or infinite are taken as nearly so.
    """
    (small, large), (short, long) = sizes, seconds
    slope = max((long - short) / (large - small), 1e-15)
    latency = max((short - slope * small) / (2 * (world - 1)), 0.0)
    return Link(name, latency, 2 * (world - 1) / world / slope, "fitted to all-reduces measured")
