"""Standard streams of a training: no closed terminal or full disk ends it through them, and ranks
that do not log keep warnings and errors only.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from robomimic_ddp.files import opened_to_write
from robomimic_ddp.terminal import print_clean, warn

KEPT = re.compile(r"warning|error|exception|traceback \(most recent", re.IGNORECASE)
"""A message that contains this is kept."""
_OF_NO_RANK = "No private macro file found"
"""In a warning of robomimic's import, about its own set-up: the main rank's is enough."""


class _Stream(io.TextIOBase):
    """A text stream to write to; each message is written at once."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: absl closes at exit the sys.stderr of its import."""


class LogFile(_Stream):
    """A text log that raises no errors: if it cannot be written (a full disk), it warns once on the
    real stderr, and tries again for later messages.

    file: open for appending; is_ours: not the host's, so that no link is followed.
    """

    def __init__(self, path: str, file: TextIO | None = None, is_ours: bool = False) -> None:
        self.path, self._file, self._has_warned = path, file, False
        self._open = opened_to_write if is_ours else open
        self.write("")

    def write(self, message: str) -> int:
        try:
            if self._file is None:
                self._file = self._open(self.path, "a")
            self._file.write(message)
            self._file.flush()
        except OSError as error:
            self.close()
            self._file = None
            if not self._has_warned:
                print_clean(
                    f"warning: the log {self.path} could not be written: {error}. Training "
                    "continues; the log lacks what is printed until there is room.",
                    file=sys.__stderr__,
                )
            self._has_warned = True
        return len(message)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk: the buffer would be flushed again at exit
                self._file.close()


class KeepWarnings(_Stream):
    """A text stream that passes messages with warnings or errors to `log`, and drops others.

    A message is one `write`; `print` writes its line end separately, so a message that is passed
    gets another. Messages that only redraw a line (progress bars) are dropped, and robomimic's
    about its macro file.
    """

    def __init__(self, log: TextIO) -> None:
        self.log = log

    def write(self, message: str) -> int:
        dropped = message.startswith("\r") or _OF_NO_RANK in message
        if KEPT.search(message) and not dropped:
            self.log.write(message if message.endswith("\n") else message + "\n")
            self.log.flush()
        return len(message)


class Tee(_Stream):
    """A text stream that writes to several others at once."""

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams
        self.log_file = streams[0]

    def write(self, message: str) -> int:
        for stream in self.streams:
            stream.write(message)
            stream.flush()
        return len(message)


class Terminal:
    """Where a standard stream leads. If it cannot be written (its terminal or `tee` has ended, its
    disk is full), it warns once in the run's log, drops what is written from then on, and raises no
    error.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w")  # None: closed, as `>&-` does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, message: str) -> int:
        self._try(lambda: self._stream.write(message))
        return len(message)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, do: Callable[[], Any]) -> None:
        try:
            do()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # for what the stream still has, too
            os.close(nowhere)
            warn(
                f"the output of this process cannot be written: {error}. Training "
                "continues, and prints only to the run's logs."
            )


@contextmanager
def without_errors() -> Iterator[None]:
    """For the block, standard streams raise no errors of writing. Restores those that the block has
    not replaced.
    """
    before = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stderr__")}
    ours = {name: Terminal(stream) for name, stream in before.items()}
    vars(sys).update(ours)
    try:
        yield
    finally:
        vars(sys).update({n: before[n] for n in before if getattr(sys, n) is ours[n]})


@contextmanager
def quiet_stdout(quiet: bool) -> Iterator[None]:
    """For the block, if `quiet`: drops prints, except warnings and errors, which go to stderr.
    Restores both standard streams, whatever the block put there.
    """
    if not quiet:
        yield
        return
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout = KeepWarnings(stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
