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
from typing import Any, Callable, NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from robomimic_ddp import env, group, main_rank
from robomimic_ddp.errors import EXIT_REFUSED, RobomimicDDPError

_INTERRUPTED = 130  # what a shell reports for Ctrl-C
_PARENT_POLL_SECONDS = 2.0
_FOLLOW_UP_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "NCCL communicator was aborted",
    "remote process exited",
    "Connection was likely closed",
)


def entry_point(main: Callable) -> Callable:
    """Decorates a process's `main`: any exception ends the process non-zero, recorded for torchrun.

    A RobomimicDDPError is one message without a traceback. An error that only says that another
    rank went away is one line. Ctrl-C is quiet. On one rank without a launcher, other exceptions
    pass unchanged.
    """

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        handler = get_error_handler()
        launched = False
        try:
            launch = env.read_launch_env()
            launched = launch.elastic
            if launched:
                handler.initialize()
                _end_with_parent()
            with main_rank.quiet_stdout(quiet=launch.rank > 0):
                return main(*args, **kwargs)
        except KeyboardInterrupt:
            _end(_INTERRUPTED)
        except RobomimicDDPError as error:
            handler.record_exception(error)
            print(f"error: {error}", file=sys.__stderr__)
            _end(EXIT_REFUSED)
        except Exception as error:
            if group.world_size() > 1 and is_follow_up(error):
                print(
                    f"rank {group.rank()}: stopped, because another rank failed "
                    f"({_first_line(error)})",
                    file=sys.__stderr__,
                )
                _end(EXIT_REFUSED)
            handler.record_exception(error)
            if not launched:
                raise
            traceback.print_exc(file=sys.stderr)
            _end(EXIT_REFUSED)

    return wrapped


def is_follow_up(error: BaseException) -> bool:
    """Whether `error` only reports that another rank's connection went away."""
    return isinstance(error, (RuntimeError, ConnectionError)) and any(
        text in str(error) for text in _FOLLOW_UP_TEXTS
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:120]


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

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        print(f"the launcher (process {parent}) is gone; this rank ends", file=sys.__stderr__)
        os._exit(EXIT_REFUSED)

    threading.Thread(target=watch, name="robomimic-ddp-launcher-watch", daemon=True).start()
