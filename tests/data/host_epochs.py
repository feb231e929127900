"""Datasets, and epochs as hosts take them from their loaders."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Samples(Dataset):
    """Sample i, with noise as an augmentation in the training process would draw."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, np.random.rand(), torch.rand(())


class Stream(IterableDataset):
    """The numbers below `size`."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def indices(batches):
    return [batch[0].tolist() for batch in batches]


class Host:
    """Takes batches as hosts do: `held` keeps one iterator over epochs (DROID), else one each."""

    def __init__(self, loader, held):
        self.loader, self.held = loader, held
        self.iterator = iter(loader) if held else None

    def epoch(self, steps):
        iterator = self.iterator if self.held else iter(self.loader)
        taken = []
        for _ in range(steps):
            try:
                taken.append(next(iterator))
            except StopIteration:
                iterator = iter(self.loader)
                taken.append(next(iterator))
        if self.held:
            self.iterator = iterator
        else:
            self.loader.drop_iterator()
        return taken
