"""Ends a process for its user's mistake before torch is imported, as `entry_point` does later."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from robomimic_ddp.config import launch_env
from robomimic_ddp.errors import EXIT_REFUSED, RobomimicDDPError
from robomimic_ddp.terminal import clean, print_clean

_LAUNCHER_SECONDS, _LINE_SECONDS = 15.0, 1.0
"""torchrun ends the other ranks sooner than this; other launchers kill the job with a rank."""


@contextmanager
def shown() -> Iterator[None]:
    """Show a RobomimicDDPError of the block, which all ranks have, on the main rank alone, record
    it for torchrun, and end the process.
    """
    try:
        yield
    except RobomimicDDPError as error:
        _end(f"error: {error}")


def record(text: str, launch: launch_env.LaunchEnv) -> None:
    """Record a failure for torchrun's summary, without the traceback that torch would add."""
    if launch.error_file is not None:
        text = clean(text.rstrip())
        extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
        content = json.dumps({"message": {"message": text, "extraInfo": extra}})
        with suppress(OSError):
            Path(launch.error_file).write_text(content, encoding="utf-8")


def _end(text: str) -> NoReturn:
    try:
        launch = launch_env.read_launch_env()
    except RobomimicDDPError as error:
        launch, text = launch_env.LaunchEnv(), f"error: {error}"
    if launch.rank == 0:
        print_clean(text, file=sys.__stderr__)
    elif launch.elastic:  # a rank that ended first would be named as the cause
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(_LAUNCHER_SECONDS)
    else:
        time.sleep(_LINE_SECONDS)
    record(text, launch)
    sys.exit(EXIT_REFUSED)
