"""Apply `ddp.workers` and `ddp.loader` to the host's DataLoader arguments."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from robomimic_ddp.config.options import Options

_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")
"""Arguments that DataLoader refuses or ignores without worker processes."""


def loader_arguments(
    host_kwargs: dict[str, Any], options: Options, workers: int | None, role: str
) -> dict[str, Any]:
    """Return the host's arguments with those of the user over them. workers: of this rank; None for
    RLDS data. That and an IterableDataset keep the host's number: each further worker would read
    all of it again.

    Batches are not pinned here unless the host or the user says so: they are pinned as they are
    sent to a GPU (`training.step.pinned_batches`), of which the host sends two frames of many.
    """
    wanted = dict(options.loader)
    if role == "valid":  # those of a resumed run would start later, and take another random number
        wanted.pop("persistent_workers", None)
    arguments = {**host_kwargs, **wanted}
    arguments.pop("in_order", None)  # positions count batches in the sampler's order
    is_stream = workers is None or isinstance(host_kwargs["dataset"], IterableDataset)
    if options.workers != "config" and not is_stream:
        arguments["num_workers"] = workers if role == "train" else min(1, workers)
    if not arguments.get("num_workers"):
        arguments = {name: value for name, value in arguments.items() if name not in _OF_WORKERS}
    return arguments
