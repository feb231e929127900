"""A batch of a whole step, cut into micro-batches."""

from __future__ import annotations

from typing import Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.step_logs import samples_in


class MicroBatches(list):
    """The micro-batches of one step. `weights`: the share of the step's samples that each holds."""

    def __init__(self, parts: list, weights: list[float]) -> None:
        super().__init__(parts)
        self.weights = weights


def split(batch: Any, count: int) -> MicroBatches:
    """`batch` in `count` consecutive parts, sizes differing by one at most; fewer where it has
    fewer samples.

    A batch is a nest of dicts, lists and tuples over arrays or tensors [B, ...] and lists of B
    texts; what has no batch dimension (None, numbers) is in every part. Raises DataError for an
    array of another length.
    """
    samples = samples_in(batch)
    count = max(1, min(count, samples))
    edges = [samples * index // count for index in range(count + 1)]
    ranges = list(zip(edges, edges[1:]))
    parts = [_cut(batch, samples, slice(*edge), "batch") for edge in ranges]
    return MicroBatches(parts, [(end - begin) / max(samples, 1) for begin, end in ranges])


def _cut(value: Any, samples: int, part: slice, path: str) -> Any:
    if isinstance(value, dict):
        kept = {key: _cut(item, samples, part, f"{path}/{key}") for key, item in value.items()}
        return kept if type(value) is dict else type(value)(kept)
    if isinstance(value, (list, tuple)):
        if len(value) == samples and all(isinstance(item, (str, bytes)) for item in value):
            return value[part]
        return type(value)(_cut(item, samples, part, path) for item in value)
    if not getattr(value, "shape", None):
        return value
    if len(value) != samples:
        raise DataError(
            f"{path} has {len(value)} entries in a batch of {samples} samples, so it cannot be "
            "cut into micro-batches. Return arrays of shape [B, ...] from the dataset, or train "
            "with ddp.accumulate=1."
        )
    return value[part]
