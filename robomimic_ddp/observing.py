"""What a host's `run_epoch` lets see of itself: each batch that it takes, and each step's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from robomimic_ddp import late
from robomimic_ddp.swapping import swapped

LOSS = "Loss"
"""The key of the loss in a host's step log."""


class Observer:
    """Sees one epoch of one rank, step by step: `batch`, `done`, `after_step`; and `step`, which
    comes between `done` and the end of the next step, in order.
    """

    def batch(self, batch: Any) -> None:
        """The batch of the next step, before the host has looked at it."""

    def refused(self, error: ValueError) -> None:
        """The host has refused that batch; raises what explains `error` better, if anything."""

    def done(self) -> None:
        """A step is done, as far as the program is concerned."""

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        """The numbers of a step that is done are known. `batch`: that step's, None where the host
        has shown none. Returns its log, for the next observer and for the host.
        """
        return step_log

    def after_step(self) -> None:
        """Nothing more is to be done about the step now."""


class Watch:
    """Stands in for two methods of `model`. `is_late`: a step's numbers are waited for at the end
    of the next step, or earlier where somebody reads them; at most one step's are outstanding.
    """

    def __init__(self, model: Any, is_late: bool) -> None:
        self.observers: list[Observer] = []
        self.is_late = is_late
        self._host_process, self._host_log = model.process_batch_for_training, model.log_info
        self._batch: Any = None
        self._outstanding: tuple[late.Log, Any] | None = None

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
        """The host's, of this step: what it reads besides `info` (learning rates) is of now."""
        self.settle()
        log = self._host_log(late.reading_late(info) if self.is_late else info, *args, **kwargs)
        if self.is_late:
            log = late.Log(log)
            self._outstanding, log.settle = (log, self._batch), self.settle
        for observer in self.observers:
            observer.done()
        if not self.is_late:
            log = self._told(log, self._batch)
        for observer in self.observers:
            observer.after_step()
        return log

    def settle(self) -> None:
        """Waits for the numbers that are outstanding, and tells the observers."""
        if self._outstanding is None:
            return
        (log, batch), self._outstanding = self._outstanding, None
        log.settle = None
        step_log = self._told({key: late.plain(value) for key, value in log.items()}, batch)
        log.clear()
        log.update(step_log)

    def _told(self, step_log: Any, batch: Any) -> Any:
        for observer in self.observers:
            step_log = observer.step(step_log, batch)
        return step_log


@contextmanager
def watching(model: Any, observers: Sequence[Observer], is_late: bool = False) -> Iterator[Watch]:
    """For the block, each of `observers`, in their order, sees what `model` is given and logs. A
    model that is watched already has them added to its Watch. At its end nothing is outstanding.
    """
    found = getattr(vars(model).get("log_info"), "__self__", None)
    watch = found if isinstance(found, Watch) else Watch(model, is_late)
    with ExitStack() as swaps:
        if watch is not found:
            for name in ("process_batch_for_training", "log_info"):
                swaps.enter_context(swapped(model, name, getattr(watch, name)))
        before = list(watch.observers)
        watch.observers += observers
        try:
            yield watch
            watch.settle()
        finally:
            watch.observers[:] = before
