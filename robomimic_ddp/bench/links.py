"""Links and clusters for the model: assumptions, not measurements. Every number can be overridden.

Bandwidths: the nominal one of a direction, times the share that large collectives are commonly seen
to reach. Latencies of a hop: of the order of those that NCCL's own tuning (`tuning.cc`, protocol
Simple) reckons with: 3.4 us over NVLink, 5.7 us over PCIe, 14 us over a network by RDMA.
"""

from __future__ import annotations

from robomimic_ddp.bench.model import Cluster, Link

NVLINK = Link(
    "NVLink",
    3.4e-6,
    0.8 * 450e9,
    "assumed: NVLink 4 (H100), 450 GB/s a direction, 80 % of it; 3.4 us a hop",
)
PCIE = Link(
    "PCIe",
    5.7e-6,
    0.75 * 31.5e9,
    "assumed: PCIe 4.0 x16, 31.5 GB/s a direction, 75 % of it; 5.7 us a hop",
)
ETHERNET = Link(
    "100 GbE",
    30e-6,
    0.85 * 12.5e9,
    "assumed: one 100 Gbit/s port, 12.5 GB/s, 85 % of it, TCP; 30 us a hop",
)
INFINIBAND = Link(
    "InfiniBand",
    14e-6,
    0.9 * 50e9,
    "assumed: one NDR port of 400 Gbit/s, 50 GB/s, 90 % of it, RDMA; 14 us a hop",
)
LINKS = {"nvlink": NVLINK, "pcie": PCIE, "ethernet": ETHERNET, "infiniband": INFINIBAND}

CLUSTERS = {
    "nvlink": Cluster("NVLink, 8 a node + 8 InfiniBand ports", NVLINK, INFINIBAND, 8, 8),
    "pcie": Cluster("PCIe, 8 a node + one 100 GbE port", PCIE, ETHERNET, 8, 1),
    "ethernet": Cluster("100 GbE, one GPU a node", ETHERNET, ETHERNET),
    "infiniband": Cluster("InfiniBand, one GPU a node", INFINIBAND, INFINIBAND),
}
