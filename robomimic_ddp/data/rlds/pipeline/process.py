"""The process that reads for a rank: `python -m robomimic_ddp.data.rlds.pipeline.process FD [PID]`.

It imports neither torch nor TensorFlow, and serves all loaders of its rank over one socket. What
takes the processor, the memory of the buffers and a crash of a decoder are its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from robomimic_ddp.config import end_with_parent
from robomimic_ddp.data.rlds.pipeline.engine import Batches, FrameCounters
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.pipeline.shared import Pool, attach, receive, send

_LOOK_SECONDS = 5.0
"""Between two looks whether the rank has ended without closing its end, which a child of it may
have too.
"""
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Warnings to the rank, which ends this process by ending itself."""


def serve(channel: socket.socket) -> None:
    """Answer requests until the rank closes its end."""
    rank = os.getppid()
    streams: dict[int, Batches] = {}
    pool = Pool()
    while True:
        while not select.select([channel], [], [], _LOOK_SECONDS)[0]:
            if os.getppid() != rank:
                return
        try:
            (request, number, *arguments), descriptors = receive(channel)
            if request == "open":
                counters = FrameCounters(attach(descriptors[0]))
                streams[number] = Batches(*arguments, counters=counters, pool=pool)
            elif request == "close":
                streams.pop(number).close()
            else:
                pool.free(*arguments)
                _answer(channel, streams[number], pool)
                streams[number].fill()  # while the rank trains
        except (EOFError, OSError):  # the rank has ended
            return


def _answer(channel: socket.socket, batches: Batches, pool: Pool) -> None:
    """Send the next batch, its end, or why there is none."""
    try:
        batch = next(batches, None)
    except RecordError as error:
        send(channel, ("damaged", error))
    # The rank must hear of any error.
    except Exception as error:
        send(channel, ("failed", f"{type(error).__name__}: {error}", traceback.format_exc()))
    else:
        if batch is None:
            send(channel, ("end",))
        else:
            answer = ("batch", batch.memory.number, batch.layout, batch.language)
            send(channel, answer, pool.lend(batch.memory))


def main(arguments: list[str]) -> Any:
    """Serve on the socket whose descriptor is the first argument. The second, if there is one, is
    the process of the rank, whose main thread has started this process.
    """
    if len(arguments) > 1:  # ends it where it is stopped (SIGSTOP), too
        end_with_parent.ending_with(int(arguments[1]), signal.SIGKILL)()
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    serve(socket.socket(fileno=int(arguments[0])))
    os._exit(0)  # without waiting for what is being decoded


if __name__ == "__main__":
    main(sys.argv[1:])
