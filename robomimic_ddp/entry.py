"""The life of a training process: errors become one recorded failure, a dead launcher ends its
workers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from robomimic_ddp import env, group, main_rank, places, remedies
from robomimic_ddp.errors import EXIT_REFUSED, LateRankError, RobomimicDDPError, Stopped

_INTERRUPTED = 130  # what a shell reports for Ctrl-C
_PARENT_POLL_SECONDS = 2.0
_FOLLOW_UP_SECONDS = 5.0
_FOLLOW_UP_PLACES = (
    *("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/"),
    *("/robomimic_ddp/stopping.py", "/robomimic_ddp/group.py"),  # Work.wait has no frame of its own
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
_TIME_LIMIT_TEXTS = ("Timed out waiting", "Watchdog caught collective")
"""Of gloo and, where the process survives it, NCCL."""


_entered: list[env.LaunchEnv] = []
"""Of the entry point that is running, if any."""


def entry_point(main: Callable) -> Callable:
    """Decorates a process's `main`: any exception ends the process non-zero, recorded for torchrun,
    shown on stderr and in the rank's log.

    A RobomimicDDPError is one message without a traceback. An error that only says that another
    rank went away is one line. Ctrl-C is quiet. In a plain process other exceptions pass unchanged.
    """

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            launch = env.read_launch_env()
        except RobomimicDDPError as error:
            print(f"error: {error}", file=sys.__stderr__)
            sys.exit(EXIT_REFUSED)
        if launch.elastic:
            get_error_handler().initialize()
            _end_with_parent()
        with main_rank.quiet_stdout(quiet=launch.rank > 0):
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
def at_once() -> Iterator[None]:
    """Within an entry point, on a rank of a process group: an exception in the block is shown and
    recorded and ends the process before anything is undone, which may wait for a GPU that hangs.
    """
    try:
        yield
    except Exception as error:
        if _entered and group.is_initialized():
            _end_for(error, _entered[-1])
        raise


def _end_for(error: BaseException, launch: env.LaunchEnv) -> None:
    """Shows and records `error`, and ends the process; returns where it should pass unchanged."""
    if isinstance(error, KeyboardInterrupt):
        _end(_INTERRUPTED)
    if isinstance(error, Stopped):
        _end(error.code)
    if isinstance(error, SystemExit):
        if error.code not in (None, 0):
            places.tell_failure()
            get_error_handler().record_exception(error)
        return
    if group.world_size() > 1 and is_follow_up(error):
        _log(traceback.format_exc())
        reason = str(error).strip().splitlines()[0][:120]
        _show(f"rank {group.rank()}: stopped, because another rank failed ({reason})\n")
        if launch.elastic:
            # torchrun looks every 0.1 s and stamps failures with whole seconds: were this rank to
            # end now, it could be named as the root cause. torchrun's signal ends the wait.
            time.sleep(_FOLLOW_UP_SECONDS)
        _end(EXIT_REFUSED)
    missing = places.missing() if is_time_limit(error) else None
    if missing is not None:
        try:  # raised, because torchrun's record holds the traceback of the error in hand
            raise LateRankError(
                f"{missing}. A rank that crashed, hangs or is much slower keeps the others "
                "waiting: see its log (log_rank<k>.txt). If it was only slow (a first index of a "
                "large data set, a busy disk), raise ddp.timeout."
            ) from error
        except LateRankError as late:
            _record_and_end(late, launch)
    _record_and_end(error, launch)


def _record_and_end(error: BaseException, launch: env.LaunchEnv) -> None:
    """For the error in hand; returns where it should pass unchanged."""
    places.tell_failure()
    get_error_handler().record_exception(error)
    if isinstance(error, RobomimicDDPError):
        text = f"error: {error}\n"
        _log(text)
        if not (error.everywhere and launch.rank > 0):
            _show(text)
        _end(EXIT_REFUSED)
    if launch.launched:
        text, remedy = traceback.format_exc(), remedies.remedy(str(error))
        if remedy:
            text += f"what to do: {remedy} More: docs/troubleshooting.md, robomimic-ddp doctor.\n"
        _log(text)
        _show(text)
        _end(EXIT_REFUSED)


def is_time_limit(error: BaseException) -> bool:
    """Whether a collective gave up waiting for another rank."""
    return _raised_by_torch(error) and any(text in str(error) for text in _TIME_LIMIT_TEXTS)


def is_follow_up(error: BaseException) -> bool:
    """Whether `error` only reports that another rank's connection went away: by its text, and
    raised by a collective (a broken connection of wandb or of a file system is a failure of its
    own).
    """
    return _raised_by_torch(error) and any(text in str(error) for text in _FOLLOW_UP_TEXTS)


def _raised_by_torch(error: BaseException) -> bool:
    if not isinstance(error, (RuntimeError, ConnectionError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1].filename.replace(os.sep, "/") if frames else ""
    return any(part in place for part in _FOLLOW_UP_PLACES)


def _show(text: str) -> None:
    """Onto the real stderr, which the host may have replaced."""
    sys.__stderr__.write(text)
    sys.__stderr__.flush()


def _log(text: str) -> None:
    """Into this rank's text log, where the host has begun one."""
    file = getattr(sys.stderr, "log_file", None)
    if file is not None:
        file.write(text)
        file.flush()


def _end(code: int) -> NoReturn:
    """Ends the process at once. With a process group alive, interpreter shutdown could wait for
    other ranks.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if group.is_initialized():
        os._exit(code)
    sys.exit(code)


def _end_with_parent() -> None:
    """Ends this worker when torchrun itself was killed and could not end it."""
    parent = os.getppid()
    orphaned = env.adopted_by_init(parent)  # it was killed while this process imported

    def watch() -> None:
        while not orphaned and os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        _show("the launcher of this rank is gone; the rank ends\n")
        os._exit(EXIT_REFUSED)

    threading.Thread(target=watch, name="robomimic-ddp-launcher-watch", daemon=True).start()
