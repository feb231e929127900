"""Batches for `bench step --loader` from a DataLoader, made by the host's own seam."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

PASS = 8
"""Steps of all ranks in a pass over the data."""


class Samples(torch.utils.data.Dataset):
    """Samples of a batch, one by one, over and over: `size` of them."""

    def __init__(self, batch: dict[str, Any], size: int) -> None:
        self.batch, self.size = batch, size
        self.stored = len(batch["actions"])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return _at(self.batch, index % self.stored)


def _at(nest: Any, index: int) -> Any:
    if isinstance(nest, dict):
        return {key: _at(value, index) for key, value in nest.items()}
    return nest[index].numpy()


def make_loader(batch: dict[str, Any], job: dict[str, Any], edited: bool) -> Any:
    """As hosts make theirs: without data workers, unless ours (`edited`) is told otherwise."""
    world = job.get("world", 1)
    kwargs = {
        "dataset": Samples(batch, PASS * world * len(batch["actions"])),
        "batch_size": job["batch"],
        "shuffle": True,
        "num_workers": 0,
        "drop_last": True,
    }
    if not edited:
        return torch.utils.data.DataLoader(**kwargs)
    from robomimic_ddp import api

    return api.train_loader(**kwargs)


def pinned(nest: Any) -> Any:
    """A batch in pinned memory, as ours has the DataLoader deliver it for a GPU."""
    if isinstance(nest, dict):
        return {key: pinned(value) for key, value in nest.items()}
    return nest.pin_memory()


def endless(loader: Any) -> Iterator[Any]:
    """Batches, pass after pass."""
    while True:
        yield from loader
