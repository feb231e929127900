"""The rank's end of the process that reads for it (`pipeline.process`)."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from robomimic_ddp.config import env
from robomimic_ddp.data.rlds.pipeline.engine import FrameCounters
from robomimic_ddp.data.rlds.pipeline.shared import Memory, attach, receive, send, views
from robomimic_ddp.errors import DataError

_MODULE = "robomimic_ddp.data.rlds.pipeline.process"
_END_SECONDS = 5.0
_ANSWER_BYTES = 2**16
"""Bytes of an answer that are read at once: at each call other threads run for milliseconds."""


class Delivered(NamedTuple):
    """A batch in shared memory: name -> array, names of observations with the prefix OBS; and each
    window's instruction, as bytes.
    """

    arrays: dict[str, np.ndarray]
    language: list[bytes]


class Reader:
    """A process that reads, and its socket. Thread-safe: a request and its answer are one."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._owner, self._mapped = os.getpid(), dict[int, mmap.mmap]()
        self._forgotten, self._freed = deque[int](), deque[int]()
        in_main = threading.current_thread() is threading.main_thread()
        tied = [str(self._owner)] if in_main else []
        with theirs:  # not a fork: threads of this process may have taken locks
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno()), *tied],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env.child_environment([path or "." for path in sys.path]),
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def can_be_asked(self) -> bool:
        """Whether the process is there, and was started by this one."""
        return self._owner == os.getpid() and self._process.poll() is None

    def open(self, arguments: tuple, counters: int) -> int:
        """Begin the `Batches` of `arguments`; return their number. counters: a descriptor."""
        number = next(self._numbers)
        self._ask(("open", number, *arguments), (counters,), answered=False)
        return number

    def next_of(self, number: int) -> Delivered:
        """Return the next batch. Raises RecordError, DataError, StopIteration."""
        (kind, *answer), descriptors = self._ask(("next", number))
        if kind == "batch":
            place, layout, language = answer
            if descriptors:
                self._mapped[place] = attach(descriptors[0])
            memory = self._mapped[place]
            # Exists as long as an array or a tensor in it.
            batch = (ctypes.c_byte * len(memory)).from_buffer(memory)
            weakref.finalize(batch, self._freed.append, place).atexit = False
            return Delivered(views(batch, layout), language)
        if kind == "damaged":
            raise answer[0]
        if kind == "failed":
            what, where = answer
            raise DataError(
                f"the process {self.pid} that reads data failed: {what}. Fewer windows "
                "(train.shuffle_buffer_size) or a smaller batch need less memory.\n" + where
            )
        raise StopIteration

    def close(self, number: int) -> None:
        """End the batches with that number, and free their buffer."""
        with suppress(DataError):
            self._ask(("close", number), answered=False)

    def forget(self, number: int) -> None:
        """Have those batches closed with the next request: while memory is collected, none may be
        sent.
        """
        self._forgotten.append(number)

    def end(self) -> None:
        """End the process."""
        if self._owner == os.getpid():
            self._channel.close()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:  # a disk that does not answer
                self._process.kill()

    def _ask(self, request: tuple, descriptors: tuple = (), answered: bool = True) -> Any:
        with self._lock:
            try:
                while self._forgotten:
                    send(self._channel, ("close", self._forgotten.popleft()))
                if request[0] == "next":
                    freed = [self._freed.popleft() for _ in range(len(self._freed))]
                    request = (*request, freed)
                send(self._channel, request, descriptors)
                return receive(self._channel, _ANSWER_BYTES) if answered else None
            except (EOFError, OSError) as error:
                raise self._ended() from error

    def _ended(self) -> DataError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        code = self._process.returncode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return DataError(
            f"the process {self.pid} that reads data for this rank {how}. SIGKILL mostly "
            "comes from the kernel, for lack of memory: lower train.shuffle_buffer_size, or give "
            "the job more memory. Otherwise its output above says why."
        )


_running: list[Reader] = []
_starting = threading.Lock()


def reader_of_rank() -> Reader:
    """Return the process that reads for this one; a new one if that has ended."""
    with _starting:
        if not _running or not _running[-1].can_be_asked:
            _running[:] = [Reader()]
            atexit.register(_running[-1].end)
        return _running[-1]


class SharedCounters(FrameCounters):
    """Counters that the process writes and the rank reads."""

    def __init__(self) -> None:
        self.memory = Memory(self.BYTES)
        super().__init__(self.memory.bytes)


class RemoteBatches:
    """The `engine.Batches` of `arguments`, made in the process that reads for this rank."""

    def __init__(self, arguments: tuple, counters: SharedCounters) -> None:
        self._reader = reader_of_rank()
        self._number = self._reader.open(arguments, counters.memory.descriptor)
        self._forget = weakref.finalize(self, self._reader.forget, self._number)

    def __iter__(self) -> RemoteBatches:
        return self

    def __next__(self) -> Delivered:
        return self._reader.next_of(self._number)

    def close(self) -> None:
        """Free the buffer."""
        if self._forget.detach():
            self._reader.close(self._number)
