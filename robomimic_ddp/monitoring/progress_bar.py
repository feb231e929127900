"""Progress of an epoch on the main rank: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.monitoring.step_hooks import LOSS, StepHook
from robomimic_ddp.monitoring.throughput import Pace
from robomimic_ddp.terminal import print_clean

HOST_BAR = "custom_tqdm"
"""The bar's name in robomimic's `LogUtils`."""
LINE_SECONDS = 30.0
"""Between two lines without a terminal."""
_RATE = "Optimizer/"
_BAR = "{desc}: {percentage:3.0f}%|{bar:6}| {n_fmt}/{total_fmt} {remaining} left{postfix}"
"""Short, so that 80 columns have speed, loss and learning rate."""


class Progress(StepHook):
    """Shows one epoch as its steps are done.

    title: such as "epoch 3"; pace: the epoch's, which sees each step first; samples_per_step: over
    all ranks; done_before: steps of the epoch before it was resumed; epochs_left: those after this
    one, for the time until training ends, or None; tells_end: whether the last step has a line. Not
    collective.
    """

    place = "progress"

    def __init__(
        self,
        title: str,
        pace: Pace,
        samples_per_step: int,
        done_before: int = 0,
        epochs_left: int | None = None,
        tells_end: bool = True,
    ) -> None:
        self.title, self.pace = title, pace
        self.samples_per_step, self.done_before = samples_per_step, done_before
        self.epochs_left, self.tells_end = epochs_left, tells_end
        self.total: int | None = None  # set by the host's bar; a host may have another one
        self._bar: Any = None
        self._shown_at = time.monotonic()

    def over(self, iterable: Iterable, *args: Any, **kwargs: Any) -> Iterable:
        """Replaces the host's bar around the epoch's steps."""
        if isinstance(iterable, Sized):
            self.total = self.done_before + len(iterable)
        terminal = getattr(sys.stdout, "terminal", sys.stdout)  # of the host's PrintLogger
        if getattr(terminal, "isatty", lambda: False)():
            from tqdm import tqdm

            shown = {"desc": self.title, "unit": "step", "file": terminal, "dynamic_ncols": True}
            shown["bar_format"] = None if self.total is None else _BAR
            self._bar = tqdm(total=self.total, initial=self.done_before, **shown)
        return iterable

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._figures(step_log)), refresh=False)
            self._bar.update()
        elif self._is_time():
            self._shown_at = time.monotonic()
            print_above_bars(self.line(step_log))
        return step_log

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()

    def line(self, step_log: dict[str, Any]) -> str:
        """Such as "epoch 3: step 40/100, 2.0 steps/s, 64 samples/s, loss 0.031, lr 0.0001, ..."."""
        rate = f"{self._steps_per_second():.3g} steps/s"
        of = "" if self.total is None else f"/{self.total}"
        return f"{self.title}: step {self._done}{of}, {rate}, " + ", ".join(self._figures(step_log))

    @property
    def _done(self) -> int:
        return self.done_before + self.pace.steps

    def _is_time(self) -> bool:
        is_last = self.tells_end and self.total is not None and self._done >= self.total
        return is_last or time.monotonic() - self._shown_at >= LINE_SECONDS

    def _steps_per_second(self) -> float:
        return self.pace.steps / self.pace.seconds if self.pace.seconds else 0.0

    def _figures(self, step_log: dict[str, Any]) -> Iterator[str]:
        speed = self._steps_per_second()
        yield f"{speed * self.samples_per_step:.3g} samples/s"
        if isinstance(step_log.get(LOSS), (int, float)):
            yield f"loss {step_log[LOSS]:.3g}"
        for key, value in step_log.items():
            if key.startswith(_RATE) and isinstance(value, (int, float)):
                yield f"lr {value:.3g}"
                break
        yield f"data wait {self.pace.data_share():.0%}"
        if self.total is None:
            return
        left = max(0, self.total - self._done)
        if speed and self._bar is None:
            yield f"ETA {_duration(left / speed)}"
        if speed and self.epochs_left is not None:
            yield f"training ends in {_duration((left + self.epochs_left * self.total) / speed)}"


def print_above_bars(line: str) -> None:
    """Print `line`; bars of tqdm, which the host may draw too, are cleared and drawn again."""
    tqdm = sys.modules.get("tqdm")
    with nullcontext() if tqdm is None else tqdm.tqdm.external_write_mode():
        print_clean(line)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def without_bars() -> Iterator[None]:
    """For the block, disables all bars of tqdm, on a rank that does not log."""
    from tqdm.std import tqdm

    tqdm_init = tqdm.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        tqdm_init(self, *args, **{**kwargs, "disable": True})

    with swapped(tqdm, "__init__", __init__):
        yield


@contextmanager
def in_place_of_hosts(run_epoch: Callable, progress: Progress | None) -> Iterator[None]:
    """For the block, `progress` replaces the host's bar in `run_epoch`; None: shows no bar."""
    module = bar_module(run_epoch)
    over = (lambda iterable, *args, **kwargs: iterable) if progress is None else progress.over
    if module is None:
        yield
        return
    try:
        with swapped(module, HOST_BAR, over):
            yield
    finally:
        if progress is not None:
            progress.close()


def bar_module(run_epoch: Callable) -> Any:
    """Return the host's module (or other object) with the bar that `run_epoch` calls, or None."""
    function = inspect.unwrap(run_epoch)
    names = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    if HOST_BAR not in used:
        return None
    return next((names[name] for name in used if hasattr(names.get(name), HOST_BAR)), None)
