"""Loaders that split a map-style dataset over ranks; the host's own DataLoader on one rank."""

from __future__ import annotations

from robomimic_ddp.sampling.loaders import train_loader, valid_loader
from robomimic_ddp.sampling.orders import order_of
from robomimic_ddp.sampling.replayed import ReplayedLoader
from robomimic_ddp.sampling.sampler import ShardedSampler
from robomimic_ddp.sampling.sharded import ShardedLoader, ShardedValidLoader
from robomimic_ddp.sampling.stream import StreamLoader
from robomimic_ddp.sampling.together import Together

__all__ = [
    "ReplayedLoader",
    "ShardedLoader",
    "ShardedSampler",
    "ShardedValidLoader",
    "StreamLoader",
    "Together",
    "order_of",
    "train_loader",
    "valid_loader",
]
