"""Several datasets as one: windows in the proportions of weights, with shared statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.dataset import RLDSDataset


class RLDSMixture:
    """Datasets with `weights`. Equal on all ranks.

    Each has separate, exact passes; one that is small for its weight is repeated. Windows (`index`)
    are numbered over all datasets, and `get_...` are RLDSDataset's, over the steps of all.
    """

    is_rlds = True
    """See RLDSDataset."""

    def __init__(self, datasets: Sequence[RLDSDataset], weights: Sequence[float]) -> None:
        self.datasets = list(datasets)
        self.weights = [float(weight) / float(sum(weights)) for weight in weights]
        self.role, self.options = self.datasets[0].role, self.datasets[0].options
        ends = np.cumsum([dataset.windows_of_all for dataset in self.datasets])
        self.first_index = [0, *ends[:-1].tolist()]

    def __len__(self) -> int:
        """Return the windows of all datasets together."""
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def name(self) -> str:
        """The paths of its datasets, for messages."""
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

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("get_"):
            raise AttributeError(name)
        return getattr(self.datasets[0], name)
