"""Standard streams of the ranks that do not log: keep warnings and errors only."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from robomimic_ddp.files import opened_to_write
from robomimic_ddp.terminal import print_clean

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
