"""Efficiency on up to 1024 GPUs, modelled from one GPU's step and from links: arithmetic only.

    python -m scripts.bench.scale --step-seconds 0.03 --parameters 67e6

A message of n bytes takes latency + n / bandwidth (Hockney 1994). All-reduces: the quicker one of a
ring (Patarasuk and Yuan 2009) and a double binary tree (Sanders, Speck and Traeff 2009). Buckets
are sent one after the other beside the backward pass. Seconds, bytes, bytes per second.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

COLUMNS = (2, 8, 64, 256, 1024)
BUCKET = 25 * 2**20

Reduce = Callable[[float, int], float]  # (bytes, GPUs) -> seconds of an all-reduce


@dataclass(frozen=True)
class Link:
    """Between two neighbors: `latency` of a message, `bandwidth` that collectives reach."""

    name: str
    latency: float
    bandwidth: float

    def all_reduce(self, size: float, world: int) -> float:
        """Seconds for `size` bytes over `world` GPUs."""
        if world == 1:
            return 0.0
        ring = 2 * (world - 1) * (self.latency + size / world / self.bandwidth)
        tree = 2 * math.ceil(math.log2(world)) * self.latency + 2 * size / self.bandwidth
        return min(ring, tree)


@dataclass(frozen=True)
class Cluster:
    """Nodes of `gpus` GPUs joined by `inside`; nodes joined by `between`, `ports` of it a node."""

    name: str
    inside: Link
    between: Link
    gpus: int = 1
    ports: int = 1

    def all_reduce(self, size: float, world: int) -> float:
        """Sums are scattered inside a node, each GPU's part reduced between nodes, and gathered."""
        inside, nodes = min(world, self.gpus), -(-world // self.gpus)
        port = self.between.bandwidth * min(1.0, self.ports / inside)
        between = replace(self.between, bandwidth=port)
        return self.inside.all_reduce(size, inside) + between.all_reduce(size / inside, nodes)


# Assumed: nominal bandwidths times a share; latencies of the order of NCCL's tuning tables.
NVLINK = Link("NVLink 4: 450 GB/s, 80 % of it, 3.4 us", 3.4e-6, 0.8 * 450e9)
PCIE = Link("PCIe 4.0 x16: 31.5 GB/s, 75 % of it, 5.7 us", 5.7e-6, 0.75 * 31.5e9)
ETHERNET = Link("100 GbE, TCP: 12.5 GB/s, 85 % of it, 30 us", 30e-6, 0.85 * 12.5e9)
INFINIBAND = Link("InfiniBand NDR: 50 GB/s, 90 % of it, 14 us", 14e-6, 0.9 * 50e9)
CLUSTERS = (
    Cluster("NVLink, 8 a node, with 8 InfiniBand ports", NVLINK, INFINIBAND, 8, 8),
    Cluster("PCIe, 8 a node, with one 100 GbE port", PCIE, ETHERNET, 8, 1),
    Cluster("100 GbE, one GPU a node", ETHERNET, ETHERNET),
    Cluster("InfiniBand, one GPU a node", INFINIBAND, INFINIBAND),
)


@dataclass(frozen=True)
class Step:
    """compute: seconds of one GPU with `batch` samples; fixed: the share of it that no batch
    shortens; backward: the share in the backward pass, which hides sending; size: bytes sent.
    """

    compute: float
    batch: float
    size: float
    fixed: float = 0.15
    backward: float = 0.55

    def alone(self, samples: float) -> float:
        """Seconds without sending."""
        return self.compute * (self.fixed + (1 - self.fixed) * samples / self.batch)

    def seconds(self, samples: float, world: int, reduce: Reduce) -> float:
        """Equal buckets are ready at equal distances; the last one is never hidden."""
        buckets = max(1, math.ceil(self.size / BUCKET))
        each = reduce(self.size / buckets, world)
        window = self.backward * self.compute * samples / self.batch
        late = max(each, buckets * each - window * (buckets - 1) / buckets)
        return self.alone(samples) + late

    def weak(self, world: int, reduce: Reduce) -> float:
        """Efficiency with `batch` samples on each GPU."""
        return self.compute / self.seconds(self.batch, world, reduce)

    def strong(self, total: float, world: int, reduce: Reduce) -> float:
        """Efficiency with `total` samples over all GPUs; nan beyond one GPU a sample."""
        if total < world:
            return math.nan
        return self.alone(total) / (world * self.seconds(total / world, world, reduce))

    def least_compute(self, world: int, reduce: Reduce) -> float:
        """Seconds that `compute` must at least be for a weak efficiency of 90 %."""
        low, high = 0.0, 1e6
        for _ in range(100):
            middle = (low + high) / 2
            enough = replace(self, compute=middle).weak(world, reduce) >= 0.9
            low, high = (low, middle) if enough else (middle, high)
        return high


def main() -> None:
    """Prints what is assumed, and three tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    figures = {
        "step-seconds": (0.03, "of one GPU's step, without sending"),
        "batch": (16, "samples of a GPU in that step"),
        "total": (1024, "samples over all GPUs, for strong efficiency"),
        "parameters": (67e6, "whose gradients are sent"),
        "bytes": (4, "of each number that is sent; 2 with ddp.comm=bf16"),
        "fixed-share": (0.15, "of a step, whatever the batch"),
        "backward-share": (0.55, "of a step"),
        "latency": (14.0, "us of a message over the link of --bandwidth"),
        "bandwidth": (0.0, "GB/s of a direction of one link that joins all GPUs, in place of ours"),
    }
    for name, (value, what) in figures.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what}; {value:g}")
    args = parser.parse_args()
    size, shares = args.parameters * args.bytes, (args.fixed_share, args.backward_share)
    step = Step(args.step_seconds, args.batch, size, *shares)
    given = Link("the link given", args.latency * 1e-6, args.bandwidth * 1e9)
    clusters = (Cluster(given.name, given, given),) if args.bandwidth else CLUSTERS
    print(f"Modelled, from {step}, buckets of {BUCKET / 2**20:g} MiB, and links that are assumed:")
    for link in dict.fromkeys(link for one in clusters for link in (one.inside, one.between)):
        print(f"  {link.name}")

    def table(title: str, cell: Callable[[int, Reduce], str]) -> None:
        print(f"\n{title}\n{'GPUs':42}" + "".join(f"{world:9}" for world in COLUMNS))
        for one in clusters:
            print(f"{one.name:42}" + "".join(cell(world, one.all_reduce) for world in COLUMNS))

    table("weak efficiency", lambda *on: f"{step.weak(*on):9.1%}")
    table(f"strong efficiency, {args.total:g}", lambda *on: f"{step.strong(args.total, *on):9.1%}")
    least = "least ms of a step for a weak efficiency of 90 %"
    table(least, lambda *on: f"{1e3 * step.least_compute(*on):9.3g}")


if __name__ == "__main__":
    main()
