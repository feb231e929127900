"""Messages and memory that a rank shares with the process that reads for it.

Memory is an anonymous file of the kernel's (memfd), sent as a descriptor: it needs no room in
/dev/shm, and is freed with the last process that has it. Needs no torch.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import socket
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np

_HEAD_BYTES = 8
_ALIGNED = 64
_GRAIN = 2**18

Layout = list[tuple[str, str, tuple[int, ...], int]]
"""For each array: name, dtype, shape, and byte offset."""
OBS = "obs/"
"""Prefix of names of observations in a batch."""


class Memory:
    """`size` bytes of shared memory: `bytes` here, by the `descriptor` elsewhere. Raises OSError
    where there is no room: later, writing would be a bus error.
    """

    def __init__(self, size: int, number: int = 0) -> None:
        self.number, self.is_sent = number, False
        if hasattr(os, "memfd_create"):  # not in a Python that was built with an old glibc (conda)
            self.descriptor = os.memfd_create("robomimic-ddp")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, size)
        os.posix_fallocate(self.descriptor, 0, size)
        self.bytes = mmap.mmap(self.descriptor, size)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class Pool:
    """Memory for batches, used again when the rank has no more tensor in it: to map and clear new
    pages takes as long as to decode what is written there.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._free: list[Memory] = []
        self._lent: dict[int, Memory] = {}

    def take(self, size: int) -> Memory:
        """Return memory of at least `size` bytes. Raises OSError."""
        fitting = (memory for memory in self._free if len(memory.bytes) >= size)
        memory = next(fitting, None)
        if memory is None:
            return Memory(-(-size // _GRAIN) * _GRAIN, next(self._numbers))
        self._free.remove(memory)
        return memory

    def put_back(self, memory: Memory) -> None:
        """Take back what was not lent."""
        self._free.append(memory)

    def lend(self, memory: Memory) -> tuple[int, ...]:
        """Return the descriptors to send with the number of `memory`: none if the rank has it."""
        self._lent[memory.number] = memory
        descriptors = () if memory.is_sent else (memory.descriptor,)
        memory.is_sent = True
        return descriptors

    def free(self, numbers: Iterable[int]) -> None:
        """Take back what was lent."""
        self._free += [self._lent.pop(number) for number in numbers]


def attach(descriptor: int) -> mmap.mmap:
    """Return the memory of a descriptor, which is closed."""
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def place(arrays: dict[str, tuple[Any, tuple[int, ...]]]) -> tuple[int, Layout]:
    """Lay out arrays, name -> (dtype, shape); return their bytes together, at least 1."""
    end, layout = 0, []
    for name, (dtype, shape) in arrays.items():
        layout.append((name, np.dtype(dtype).str, shape, end))
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        end += -(-size // _ALIGNED) * _ALIGNED
    return max(end, 1), layout


def views(memory: Any, layout: Layout) -> dict[str, np.ndarray]:
    """Return the arrays in `memory`, which they keep."""
    return {name: np.ndarray(shape, dtype, memory, offset) for name, dtype, shape, offset in layout}


def send(channel: socket.socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, and descriptors. Raises OSError where the other end is closed."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    data = len(data).to_bytes(_HEAD_BYTES, "little") + data
    sent = socket.send_fds(channel, [data], descriptors) if descriptors else channel.send(data)
    channel.sendall(memoryview(data)[sent:])


def receive(channel: socket.socket, at_once: int = _HEAD_BYTES) -> tuple[Any, list[int]]:
    """Wait for a message and its descriptors. at_once: bytes of the first call, more than the head
    where no other message can follow. Raises EOFError where the other end is closed.
    """
    data, descriptors, *_ = socket.recv_fds(channel, at_once, 4)
    if not data:
        raise EOFError
    data += _exactly(channel, max(0, _HEAD_BYTES - len(data)))
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    body += _exactly(channel, int.from_bytes(head, "little") - len(body))
    return pickle.loads(body), descriptors


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = channel.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(data)
