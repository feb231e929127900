"""Several datasets as one: windows of each in the proportions of the weights, all normalised
alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from robomimic_ddp.data.rlds.dataset import RLDSDataset


class RLDSMixture:
    """Datasets `datasets` with `weights`, as the host holds them. Equal on all ranks.

    Each goes through its own passes, exact as if it were alone; one that is small for its weight
    comes more often. The numbers of windows (`index`) follow each other over the datasets.
    """

    is_rlds = True
    """As RLDSDataset's."""

    def __init__(self, datasets: Sequence[RLDSDataset], weights: Sequence[float]) -> None:
        self.datasets = list(datasets)
        self.weights = [float(weight) / float(sum(weights)) for weight in weights]
        self.role, self.options = self.datasets[0].role, self.datasets[0].options
        ends = np.cumsum([dataset.windows_of_all for dataset in self.datasets])
        self.first_index = [0, *ends[:-1].tolist()]

    def __len__(self) -> int:
        """Windows of all datasets together."""
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def name(self) -> str:
        """Where its parts lie, for people."""
        return ", ".join(dataset.name for dataset in self.datasets)

    def __repr__(self) -> str:
        lines = []
        for dataset, weight in zip(self.datasets, self.weights):
            times = weight * len(self) / len(dataset)
            lines.append(
                f"{dataset.source.name}: {weight:.1%} of the samples from {len(dataset)} windows: "
                f"each comes {times:.2f} times in {len(self)} samples"
            )
        parts = "\n".join(repr(dataset) for dataset in self.datasets)
        return "RLDSMixture (\n\t" + "\n\t".join(lines) + f"\n)\n{parts}"

    def get_dataset_sampler(self) -> None:
        """None: the order comes from the loader, not from a sampler of indices."""

    def get_action_stats(self) -> OrderedDict:
        """As RLDSDataset's, over the steps of all datasets."""
        return self.datasets[0].get_action_stats()

    def get_action_normalization_stats(self) -> OrderedDict:
        """As RLDSDataset's, over the steps of all datasets."""
        return self.datasets[0].get_action_normalization_stats()

    def get_obs_normalization_stats(self) -> dict[str, dict[str, np.ndarray]]:
        """As RLDSDataset's, over the steps of all datasets."""
        return self.datasets[0].get_obs_normalization_stats()
