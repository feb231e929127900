"""Runs functions on the main rank, and shares their values and errors with all ranks."""

from __future__ import annotations

import functools
import pickle
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import group, host_algo, tree_collectives
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.terminal import clean, print_clean

_is_inside: ContextVar[bool] = ContextVar("is_inside_on_main", default=False)
"""Main rank: whether a function of `on_main` is running."""


class MainRankTraceback(RobomimicDDPError):
    """The traceback text of the main rank, as the cause of the same error on the other ranks."""


def on_main(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Collective: `function(*args, **kwargs)`, called on the main rank; its value on every rank.

    An error of the function is raised on every rank, with its type and message; on the other
    ranks the main rank's traceback is its cause. An error that cannot be pickled is raised as a
    RobomimicDDPError with its text; a value that cannot be pickled raises a pickling error on every
    rank. KeyboardInterrupt is not shared: every rank gets the signal.

    Within `function` another `on_main` is a plain call: the other ranks are not there to receive.
    """
    if group.world_size() == 1 or _is_inside.get():
        return function(*args, **kwargs)
    error: BaseException | None = None
    value, telegram = None, b""
    if group.is_main():
        inside = _is_inside.set(True)
        try:
            value = function(*args, **kwargs)
            telegram = pickle.dumps((value, None, ""))
        except (Exception, SystemExit) as raised:
            error = raised
            telegram = _error_telegram(raised)
        finally:
            _is_inside.reset(inside)
    telegram = group.broadcast_object(telegram)
    if group.is_main():
        if error is not None:
            error.everywhere = True  # type: ignore[attr-defined]
            raise error
        return value
    value, error, text = pickle.loads(telegram)
    if error is not None:
        error.everywhere = True
        raise error from MainRankTraceback(f"on the main rank:\n{text}")
    return value


def on_main_untimed(waiting: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Collective: `on_main` for what takes long. The others wait without ddp.timeout, in `waiting`,
    a group of `group.without_time_limit`.
    """
    if _is_inside.get():
        return function(*args, **kwargs)
    outcome: Future = Future()
    if group.is_main():
        try:
            outcome.set_result(function(*args, **kwargs))
        except (Exception, SystemExit) as error:
            outcome.set_exception(error)
    group.gather_objects(None, within=waiting)
    return on_main(outcome.result)


def _error_telegram(error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        telegram = pickle.dumps((None, error, text))
        pickle.loads(telegram)  # an exception with another constructor may fail only here
        return telegram
    except Exception:
        message = f"the main rank failed with {type(error).__name__}: {error}\n{text}"
        return pickle.dumps((None, RobomimicDDPError(message), text))


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Collective: decorates a function of the host's that writes files: called on the main rank
    only; its value, or error, on every rank. Raises UnpatchedScript on ranks that have not met.
    """

    @functools.wraps(function)
    def call_once(*args: Any, **kwargs: Any) -> Any:
        if not group.is_initialized():
            host_edits.require_one_rank(function.__name__, sys._getframe(1).f_code)
        return on_main(function, *args, **kwargs)

    return call_once


def main_rank_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function to run on the main rank only; None on others, which do not wait.

    Collective where it is given an Algo with sharded nets, as `save_model` is: what the Algo
    serializes is whole for the call, on the main rank's CPU.
    """

    @functools.wraps(function)
    def run_on_main_rank(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for algo in filter(_is_sharded_algo, (*args, *kwargs.values())):
                content = tree_collectives.whole(algo.serialize())
                stack.enter_context(swapped(algo, "serialize", lambda content=content: content))
            return function(*args, **kwargs) if group.is_main() else None

    return run_on_main_rank


def _is_sharded_algo(value: Any) -> bool:
    return hasattr(type(value), "serialize") and any(
        fsdp.is_sharded(parameter) for _, parameter in host_algo.named_parameters(value)
    )


def agree(value: Any) -> Any:
    """Collective: returns the main rank's `value` on every rank."""
    return group.broadcast_object(value)


def say(text: str | None) -> None:
    """Print on the main rank; nothing for None."""
    if text is not None and group.is_main():
        print_clean(text)


def ask(prompt: str) -> str:
    """`input(prompt)`; without a terminal prints that, and returns "n" (keep what is there)."""
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            return input(clean(prompt))
        reason = "no terminal to answer from"
    except (EOFError, ValueError):  # ValueError: stdin is closed
        reason = "no answer"
    print_clean(f"{prompt.rstrip()}\n{reason}: keeping what is there (n)")
    return "n"
