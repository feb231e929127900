"""What a host's `run_epoch` lets see of itself: each batch that it takes, and each step's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from robomimic_ddp.swapping import swapped

LOSS = "Loss"
"""The key of the loss in a host's step log."""


class Observer:
    """Sees one epoch of one rank, step by step: `batch`, `done`, `step`, `after_step`."""

    def batch(self, batch: Any) -> None:
        """The batch of the next step, before the host has looked at it."""

    def refused(self, error: ValueError) -> None:
        """The host has refused that batch; raises what explains `error` better, if anything."""

    def done(self) -> None:
        """A step is done, and no observer has seen its numbers yet."""

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        """The numbers of the step. `batch`: that step's, None where the host has shown none.
        Returns its log, for the next observer and for the host.
        """
        return step_log

    def after_step(self) -> None:
        """Every observer has seen the step."""


class Watch:
    """Stands in for two methods of `model`, and tells `observers`, in their order."""

    def __init__(self, model: Any) -> None:
        self.observers: list[Observer] = []
        self._host_process, self._host_log = model.process_batch_for_training, model.log_info
        self._batch: Any = None

    def process_batch_for_training(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's."""
        self._batch = batch
        for observer in self.observers:
            observer.batch(batch)
        try:
            return self._host_process(batch, *args, **kwargs)
        except ValueError as error:
            for observer in self.observers:
                observer.refused(error)
            raise

    def log_info(self, info: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's, then the observers'."""
        log = self._host_log(info, *args, **kwargs)
        for observer in self.observers:
            observer.done()
        for observer in self.observers:
            log = observer.step(log, self._batch)
        for observer in self.observers:
            observer.after_step()
        return log


@contextmanager
def watching(model: Any, observers: Sequence[Observer]) -> Iterator[None]:
    """For the block, each of `observers`, in their order, sees what `model` is given and logs. A
    model that is watched already has them added to its Watch.
    """
    found = getattr(vars(model).get("log_info"), "__self__", None)
    watch = found if isinstance(found, Watch) else Watch(model)
    with ExitStack() as swaps:
        if watch is not found:
            for name in ("process_batch_for_training", "log_info"):
                swaps.enter_context(swapped(model, name, getattr(watch, name)))
        before = list(watch.observers)
        watch.observers += observers
        try:
            yield
        finally:
            watch.observers[:] = before
