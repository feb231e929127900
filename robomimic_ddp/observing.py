"""What a host's `run_epoch` lets see of itself: each batch that it takes, and each step's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from robomimic_ddp.swapping import swapped

LOSS = "Loss"
"""The key of the loss in a host's step log."""


class Observer:
    """Sees one epoch of one rank, step by step."""

    def batch(self, batch: Any) -> None:
        """The batch of the next step, before the host has looked at it."""

    def refused(self, error: ValueError) -> None:
        """The host has refused that batch; raises what explains `error` better, if anything."""

    def step(self, step_log: dict[str, Any]) -> dict[str, Any]:
        """The step is done. Returns its log, for the next observer and for the host."""
        return step_log


@contextmanager
def watching(model: Any, observers: Sequence[Observer]) -> Iterator[None]:
    """For the block, each of `observers`, in their order, sees what `model` is given and logs."""
    host_process, host_log = model.process_batch_for_training, model.log_info

    def process_batch_for_training(batch: Any, *args: Any, **kwargs: Any) -> Any:
        for observer in observers:
            observer.batch(batch)
        try:
            return host_process(batch, *args, **kwargs)
        except ValueError as error:
            for observer in observers:
                observer.refused(error)
            raise

    def log_info(*args: Any, **kwargs: Any) -> Any:
        step_log = host_log(*args, **kwargs)
        for observer in observers:
            step_log = observer.step(step_log)
        return step_log

    with ExitStack() as swaps:
        swaps.enter_context(
            swapped(model, "process_batch_for_training", process_batch_for_training)
        )
        swaps.enter_context(swapped(model, "log_info", log_info))
        yield
