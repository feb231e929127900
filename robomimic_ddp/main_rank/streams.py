"""Standard streams of the ranks that do not log: warnings and errors are kept, no more."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

KEPT = re.compile(r"warning|error|exception|traceback \(most recent", re.IGNORECASE)
"""A message that contains this is kept."""


class KeepWarnings:
    """A text stream that passes messages with warnings or errors on to `kept`, drops others.

    A message is one `write`; `print` writes its line end by itself, so a kept message gets its own.
    Messages that only redraw a line (progress bars) are never kept.
    """

    encoding = "utf-8"

    def __init__(self, kept: TextIO) -> None:
        self.kept = kept

    def write(self, message: str) -> int:
        if KEPT.search(message) and not message.startswith("\r"):
            self.kept.write(message if message.endswith("\n") else message + "\n")
            self.kept.flush()
        return len(message)

    def flush(self) -> None:
        self.kept.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing: absl closes at exit the stream that was sys.stderr when it was imported."""


class Tee:
    """A text stream that writes to several others at once."""

    encoding = "utf-8"

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams
        self.log_file = streams[0]

    def write(self, message: str) -> int:
        for stream in self.streams:
            stream.write(message)
            stream.flush()
        return len(message)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing: absl closes at exit the stream that was sys.stderr when it was imported."""


@contextmanager
def quiet_stdout(quiet: bool) -> Iterator[None]:
    """For the block, where `quiet`: prints are dropped, except warnings and errors, which go to
    stderr. At the end both standard streams are what they were, whatever the block put there.
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
