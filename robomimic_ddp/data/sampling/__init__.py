"""Loaders that split a map-style dataset over ranks; the host's own DataLoader on one rank."""

from __future__ import annotations

from robomimic_ddp.data.sampling.loaders import train_loader, valid_loader
from robomimic_ddp.data.sampling.nested_loaders import JoinedLoaders, StreamLoader, seek
from robomimic_ddp.data.sampling.pass_order import order_of
from robomimic_ddp.data.sampling.replay import ReplayedLoader
from robomimic_ddp.data.sampling.sampler import ShardedSampler
from robomimic_ddp.data.sampling.sharded_loader import ShardedLoader, ShardedValidLoader
