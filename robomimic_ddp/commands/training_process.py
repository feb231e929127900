"""Starts the user's training in other processes, for commands that wait for its end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any


def start(
    words: Sequence[str],
    log: IO[bytes],
    variables: Mapping[str, str],
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen:
    """Start a program that prints into `log`. Ctrl-C reaches this process alone, which passes it
    on: it would come to torchrun twice. preexec_fn: as of Popen.
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


@contextmanager
def handling(signals: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """For the block, call `handler(signal, frame)` for those of `signals` that are not ignored, as
    under nohup.
    """
    ours = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
