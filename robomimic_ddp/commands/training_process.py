"""Starts the user's training in other processes, for commands that wait for its end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

_STOP_SECONDS = 60


def start(
    words: Sequence[str],
    log: IO[bytes],
    variables: Mapping[str, str],
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen:
    """Start a program that prints into `log`, in a separate session: only this process receives
    Ctrl-C, and torchrun would otherwise receive it twice. preexec_fn: as of Popen.
    """
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=variables,
        start_new_session=True,
        preexec_fn=preexec_fn,
    )


def stop(process: subprocess.Popen) -> None:
    """Terminate the process if it still runs, wait for its end, and kill it after a minute."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def handling(signals: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """For the block, call `handler(signal, frame)` for `signals`, except for ignored ones, such as
    SIGHUP under nohup.
    """
    handled = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    former_handlers = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, former in former_handlers.items():
            signal.signal(number, former)
