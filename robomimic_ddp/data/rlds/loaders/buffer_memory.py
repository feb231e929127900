"""Estimate the memory of the shuffle buffers of a node's ranks, for the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from robomimic_ddp.config.planning.memory import amount
from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.schema.features import flat_features

LARGEST_SHARE = 0.5
"""Share of the machine's memory: nets, page cache and batches need the rest."""
_BYTES_OF_A_TEXT = 24
_BYTES_OF_A_ROW = 128
"""Overhead of a window in the shuffle buffer, a dict."""


def window_bytes(dataset: RLDSDataset) -> float:
    """Return the expected bytes of a window of `dataset` in the shuffle buffer."""
    fields, shape = dataset.fields, dataset.shape
    steps = flat_features(dataset.source.features["steps"].feature)
    stored = sum(type(feature).__name__ == "Image" for feature in steps.values())
    per_step = sum(dataset.source.sizes) / max(1, dataset.index.length.sum())
    frames = per_step * len(fields.images) / max(1, stored) * shape.frame_stack
    numbers = shape.frame_stack * sum(int(np.prod(s)) for s in fields.low_dim_shapes.values())
    numbers += shape.actions * (fields.action_size + 1)
    texts = len(fields.images) * shape.frame_stack + 1
    return frames + 4 * numbers + _BYTES_OF_A_TEXT * texts + _BYTES_OF_A_ROW


def lines(loader: Any, ranks_on_node: int, machine_bytes: int) -> Iterator[str]:
    """Yield the plan's line on the shuffle buffers of a train loader, and a warning if they are
    large for the machine (`machine_bytes`; 0: unknown). Nothing for other loaders.
    """
    if not hasattr(loader, "shuffle_buffers"):
        return
    buffers = list(loader.shuffle_buffers())
    windows = sum(count for count, _ in buffers)
    expected = ranks_on_node * sum(count * size for count, size in buffers)
    yield (
        f"shuffle buffers: {windows} windows per rank x {ranks_on_node} rank(s) on this node, "
        f"about {amount(expected)} of encoded frames"
    )
    if machine_bytes and expected > LARGEST_SHARE * machine_bytes:
        yield (
            f"warning: that is {expected / machine_bytes:.0%} of this machine's "
            f"{amount(machine_bytes)}, and the ranks may be killed for lack of memory: lower "
            "train.shuffle_buffer_size"
        )
