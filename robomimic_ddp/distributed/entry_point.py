"""Entry point of a training process: records errors for torchrun, ends if the launcher is dead."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from robomimic_ddp.config import early_failure, env, launch_env
from robomimic_ddp.distributed import (
    end_process,
    group,
    known_errors,
    quiet_streams,
    signals,
    watchdog,
)
from robomimic_ddp.errors import (
    EXIT_REFUSED,
    LateRankError,
    RobomimicDDPError,
    Stopped,
    UnpatchedScript,
)
from robomimic_ddp.terminal import print_clean

_INTERRUPTED = 130  # what a shell reports for Ctrl-C
_PARENT_POLL_SECONDS = 2.0
_FOLLOW_UP_SECONDS = 15.0
_LINE_SECONDS, _SAME_SECONDS = 1.0, 5.0
_FOLLOW_UP_PLACES = (
    *("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/"),
    # Work.wait has no Python frame.
    *("/robomimic_ddp/distributed/signals.py", "/robomimic_ddp/distributed/group.py"),
)
_FOLLOW_UP_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "NCCL communicator was aborted",
    "remote process exited",
    "Connection was likely closed",
)
_TIME_LIMIT_TEXTS = ("Timed out waiting", "Application timeout", "Watchdog caught collective")
"""Messages of gloo, also for later collectives in flight, and, if the process survives it, NCCL."""


_SIMULATORS = {"isaaclab", "omni"}
"""Packages of Isaac Sim, which ends a process with 0 when Python calls its last functions."""
_entered: list[launch_env.LaunchEnv] = []
"""The launch environment of the running entry point, if any."""
_last_words: list[Callable[[], None]] = []
"""Called when torchrun was killed."""


def entry_point(main: Callable) -> Callable:
    """Decorates a process's `main`: any exception ends the process non-zero, is recorded for
    torchrun, and shown on stderr and in the rank's log.

    A RobomimicDDPError is shown without a traceback. The first rank to fail shows its whole error,
    others one line, or none for the same error. Ctrl-C shows nothing. In a plain process other
    exceptions pass unchanged.
    """

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            launch = launch_env.read_launch_env()
            launch_env.require_all_nodes(launch)
        except RobomimicDDPError as error:
            print_clean(f"error: {error}", file=sys.__stderr__)
            sys.exit(EXIT_REFUSED)
        if launch.elastic:
            get_error_handler().initialize()
            _end_with_parent()
        signals.SignalListener.has_terminated = False
        other = launch.rank > 0
        with (
            quiet_streams.without_errors(),
            quiet_streams.quiet_stdout(quiet=other),
            env.without_wandb(off=other),
        ):
            _entered.append(launch)
            try:
                return main(*args, **kwargs)
            except BaseException as error:
                _end_for(error, launch)
                raise
            finally:
                _entered.pop()

    return wrapped


@contextmanager
def at_once(last_words: Callable[[Exception], None] = lambda error: None) -> Iterator[None]:
    """In an entry point, on a rank of a process group: an exception in the block is shown,
    recorded, and ends the process at once, before any clean-up, which may wait for a GPU that
    hangs. `last_words` is called with it first.
    """
    try:
        yield
    except Exception as error:
        if _entered and group.is_initialized():
            with suppress(Exception):
                last_words(error)
            _end_for(error, _entered[-1])
        raise


@contextmanager
def if_launcher_dies(say: Callable[[], None]) -> Iterator[None]:
    """`say` is called, in a thread, if the launcher is killed during the block."""
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


def _end_for(error: BaseException, launch: launch_env.LaunchEnv) -> None:
    """Shows and records `error`, and ends the process; returns if it should pass unchanged."""
    if isinstance(error, KeyboardInterrupt):
        _end(_INTERRUPTED)
    if isinstance(error, Stopped):
        with suppress(ValueError):  # not in the main thread
            for number in signals.SIGNALS:  # torchrun's SIGTERM to a rank that ends a moment later
                signal.signal(number, signal.SIG_IGN)
        _end(error.code)
    if isinstance(error, SystemExit):
        if error.code not in (None, 0):
            watchdog.first_to_fail()
            get_error_handler().record_exception(error)
            if isinstance(error, UnpatchedScript) and launch.rank > 0:
                _wait_for_launcher(_SAME_SECONDS)  # the main rank prints the message
            if launch.launched and isinstance(error.code, int):
                _end(error.code)
            if launch.launched:
                _show(str(error.code))
                _end(EXIT_REFUSED)
        return
    if group.world_size() > 1 and is_follow_up(error):
        _log(traceback.format_exc())
        first = watchdog.failed_rank()
        culprit = "another rank" if first in (None, launch.rank) else watchdog.name(first)
        _end_after_another(launch, f"stopped, because {culprit} failed ({_first_line(error)})")
    missing = watchdog.missing() if is_time_limit(error) else None
    if missing is not None:
        try:  # raised, because the log has the traceback of the current error
            raise LateRankError(
                f"{missing}. A rank that crashed, hangs or is much slower keeps the others "
                "waiting: see its log (log_rank<k>.txt). If it was only slow (a first index of a "
                "large dataset, a busy disk), raise ddp.timeout."
            ) from error
        except LateRankError as late:
            _show_and_end(late, launch)
    if launch.launched or isinstance(error, RobomimicDDPError):
        _show_and_end(error, launch)


def _show_and_end(error: BaseException, launch: launch_env.LaunchEnv) -> NoReturn:
    """Shows the complete error on the first rank to fail; one that all have, on the main rank."""
    everywhere = getattr(error, "everywhere", False)
    if launch.rank > 0 and not everywhere and not group.is_initialized():
        _wait_for_launcher(_SAME_SECONDS)  # most likely the main rank shows the same error now
    is_first = not (everywhere and launch.rank > 0) and watchdog.first_to_fail()
    ours = isinstance(error, RobomimicDDPError)
    text = f"error: {error}" if ours else f"error: {type(error).__name__}: {error}"
    of_one_rank = launch.world_size > 1 and not everywhere
    message = f"rank {launch.rank}: {text}\n" if of_one_rank else f"{text}\n"
    remedy = "" if ours else known_errors.remedy(str(error))
    if remedy:
        message += f"what to do: {remedy} More: docs/troubleshooting.md, robomimic-ddp doctor.\n"
    stack = traceback.format_exc()
    _log(message + ("" if ours and error.__cause__ is None else stack))
    if not is_first:
        _end_after_another(launch, f"failed too ({_first_line(text)})", quiet=everywhere)
    early_failure.record(message if ours else message + stack, launch)
    _show(message if ours or launch.shown_by_launcher else message + stack)
    if launch.rank == 0 and launch.world_size > 1 and not launch.keeps_store:
        time.sleep(_LINE_SECONDS)  # the store ends with this process, and the others ask it now
    _end(EXIT_REFUSED)


def _end_after_another(launch: launch_env.LaunchEnv, line: str, quiet: bool = False) -> NoReturn:
    """Ends a rank that is not the first to fail, with one line."""
    if not quiet:
        _show(f"rank {launch.rank}: {line}\n")
    if launch.elastic:
        # torchrun polls every 0.1 s and rounds times to seconds: it could name this rank as the
        # root cause if it ended now.
        _wait_for_launcher(_FOLLOW_UP_SECONDS)
    else:
        time.sleep(_LINE_SECONDS)  # other launchers kill the job when the first rank ends
    early_failure.record(line, launch)
    _end(EXIT_REFUSED)


def _wait_for_launcher(seconds: float) -> None:
    """Waits for torchrun's signal, which it sends once the job has failed, and ends the process;
    torchrun would list another end as a failure. Returns if no signal comes.
    """
    if signals.SignalListener.has_terminated:  # before this rank noticed the failure
        end_process.exit_with_workers(0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: end_process.exit_with_workers(0))
    time.sleep(seconds)


def _first_line(error: BaseException | str) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def is_time_limit(error: BaseException) -> bool:
    """Return whether a collective timed out."""
    return _raised_by_torch(error) and any(text in str(error) for text in _TIME_LIMIT_TEXTS)


def is_follow_up(error: BaseException) -> bool:
    """Return whether `error` only reports the closed connection of another rank: by its text, and
    raised by a collective (and not by wandb or a file system).
    """
    return _raised_by_torch(error) and any(text in str(error) for text in _FOLLOW_UP_TEXTS)


def _raised_by_torch(error: BaseException) -> bool:
    if not isinstance(error, (RuntimeError, ConnectionError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1].filename if frames else ""
    return any(part in place for part in _FOLLOW_UP_PLACES)


def _show(text: str) -> None:
    """Writes to the real stderr, which the host may have replaced."""
    print_clean(text.removesuffix("\n"), file=sys.__stderr__)


def _log(text: str) -> None:
    """Writes to this rank's text log, if the host has opened one."""
    file = getattr(sys.stderr, "log_file", None)
    if file is not None:
        file.write(text)
        file.flush()


def _end(code: int) -> NoReturn:
    """Ends the process at once: interpreter shutdown could wait for other ranks, and functions
    that are called then could end it with 0, as Isaac Sim's does.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if group.is_initialized() or not sys.modules.keys().isdisjoint(_SIMULATORS):
        end_process.exit_with_workers(code)
    sys.exit(code)


def _end_with_parent() -> None:
    """Ends this process when torchrun was killed and could not end it."""
    parent = os.getppid()
    orphaned = env.adopted_by_init(parent)  # it was killed while this process imported

    def watch() -> None:
        while not orphaned and os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        _show("the launcher of this rank is gone; the rank ends\n")
        with suppress(Exception):
            for say in _last_words:
                say()
        end_process.exit_with_workers(EXIT_REFUSED)

    threading.Thread(target=watch, name="robomimic-ddp-launcher-watch", daemon=True).start()
