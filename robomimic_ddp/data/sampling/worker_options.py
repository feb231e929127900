"""Applies `ddp.workers`, `pin_memory`, `persistent_workers`, `prefetch` to DataLoader arguments."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from robomimic_ddp.config.options import Options

_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")
"""Arguments that DataLoader refuses or ignores without worker processes."""


def loader_arguments(
    kwargs: dict[str, Any], options: Options, workers: int, on_gpu: bool, role: str
) -> dict[str, Any]:
    """`kwargs` overridden by the options that are not at their default. workers: of this rank. An
    IterableDataset keeps its number: each further worker would read all of it again.
    """
    made = dict(kwargs)
    if options.workers != "config" and not isinstance(kwargs["dataset"], IterableDataset):
        made["num_workers"] = workers if role == "train" else min(1, workers)
    if pins(options, on_gpu):
        made["pin_memory"] = True
    elif options.pin_memory == "false":
        made["pin_memory"] = False
    if not made.get("num_workers"):
        if kwargs.get("num_workers"):  # the host's other arguments may need them
            made = {name: value for name, value in made.items() if name not in _OF_WORKERS}
        return made
    if options.persistent_workers:
        made["persistent_workers"] = True
    if options.prefetch:
        made["prefetch_factor"] = options.prefetch
    return made


def pins(options: Options, on_gpu: bool) -> bool:
    """Whether batches should be in pinned memory, which a GPU copies from while it computes."""
    wanted = options.pin_memory == "true"
    if options.pin_memory == "auto":
        wanted = options.preset != "safe"
    return wanted and on_gpu
