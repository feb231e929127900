"""Hooks of one step of a host's loop, and their order.

The host's `run_epoch` calls four methods of its algorithm for each batch:

1. `process_batch_for_training`: the hooks' `batch`, in ORDER; then the host's, of which each
   micro-batch has its turn in 2.
2. `train_on_batch`, on each micro-batch: forward (compiled; an image encoder checkpointed inside);
   `backprop_for_loss` (`step.backprop`: loss weighted, gradients reduced at the last micro-batch,
   clipped); `verify`'s look at the first gradients; the optimizer's step; the averages' step.
3. `on_gradient_step`: the host's; nothing in validation on several ranks.
4. `log_info`: the host's, on each micro-batch; then the hooks' `done`, all of their `step`, all of
   their `after_step`, each in ORDER.

`StepHooks` replaces 1 and 4, `training.presets` installs what training changes in 2.
docs/how_it_works.md lists every replaced attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from robomimic_ddp.config.monkeypatch import swapped

LOSS = "Loss"
"""The key of the loss in a host's step log."""
ORDER = (
    *("pace", "pictures", "debug", "heartbeat", "loss guard", "progress", "epoch log", "verify"),
    "profile",
)
"""The order of the hooks. The guard comes before hooks that show or record a loss, and may remove
numbers; the epoch's log may raise to stop the run.
"""


class StepHook:
    """Base of hooks: called at one rank's steps, at its `place` in ORDER."""

    place: str

    def batch(self, batch: Any) -> None:
        """The batch of the next step, before the host processes it."""

    def done(self) -> None:
        """A step is done; called before any hook's `step`."""

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        """Return the log of the step, for the next hook and the host. batch: that step's, or None
        if the host has shown none.
        """
        return step_log

    def after_step(self) -> None:
        """Every hook has seen the step."""

    def end(self) -> None:
        """Collective: the training steps of an epoch are over."""


class StepHooks:
    """Replaces two methods of `model`, and calls `hooks` around them. beneath: the methods that it
    calls, by name, by default the host's.
    """

    def __init__(self, model: Any) -> None:
        self.set_hooks([])
        self.beneath = SimpleNamespace(**{n: getattr(model, n) for n in _SEEN if hasattr(model, n)})
        self._batch: Any = None

    def set_hooks(self, hooks: Iterable[StepHook]) -> None:
        """Sets the hooks, in ORDER. A hook is called only by the methods that it defines."""
        self.hooks = sorted(hooks, key=lambda hook: ORDER.index(hook.place))
        self._calls = {
            name: [getattr(hook, name) for hook in self.hooks if _defines(hook, name)]
            for name in ("batch", "done", "step", "after_step")
        }

    def process_batch_for_training(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the hooks, then the host's method."""
        self._batch = batch
        for see in self._calls["batch"]:
            see(batch)
        return self.beneath.process_batch_for_training(batch, *args, **kwargs)

    def log_info(self, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the host's method, then the hooks."""
        log = self.beneath.log_info(info, *args, **kwargs)
        for done in self._calls["done"]:
            done()
        for step in self._calls["step"]:
            log = step(log, self._batch)
        for after_step in self._calls["after_step"]:
            after_step()
        return log


def _defines(hook: StepHook, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(StepHook, name)


_SEEN = ("process_batch_for_training", "log_info")


def end(model: Any) -> None:
    """Collective: tell the hooks of `model` that the training steps of an epoch are over."""
    step_hooks = _present(model)
    for hook in step_hooks.hooks if step_hooks is not None else ():
        hook.end()


def _present(model: Any) -> StepHooks | None:
    """Return what replaces the methods of `model`, if hooks are installed."""
    owners = (getattr(vars(model).get(name), "__self__", None) for name in _SEEN)
    return next((owner for owner in owners if isinstance(owner, StepHooks)), None)


@contextmanager
def installed(
    model: Any, hooks: Iterable[StepHook] = (), methods: Mapping[str, Callable] | None = None
) -> Iterator[None]:
    """For the block, adds `hooks` to the steps of `model`. methods: replace the host's of these
    names, beneath all hooks, and get the host's as first argument. Blocks may end in any order;
    with the first one all do.
    """
    present = _present(model)
    step_hooks, hooks = present or StepHooks(model), list(hooks)
    with ExitStack() as undo:
        for name in vars(step_hooks.beneath) if present is None else ():
            undo.enter_context(swapped(model, name, getattr(step_hooks, name)))
        for name, method in (methods or {}).items():
            owner = step_hooks.beneath if name in _SEEN else model
            method = partial(method, getattr(owner, name, None))
            undo.enter_context(swapped(owner, name, method))
        step_hooks.set_hooks([*step_hooks.hooks, *hooks])
        try:
            yield
        finally:
            step_hooks.set_hooks(
                present
                for present in step_hooks.hooks
                if not any(present is hook for hook in hooks)
            )
            step_hooks._batch = None  # frees its memory
