"""One worker process of the pool: takes a task, runs it as a rank of a gloo group, answers.

A worker lives for the whole test session, a group for one task. A worker leaves it when the next
task begins, by which time every rank has answered and nobody uses its sockets any more; after a
failure it leaves at once, since this is how the other ranks notice.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from robomimic_ddp.config import end_with_parent

COLLECTIVE_TIMEOUT_SECONDS = 300.0
"""Of the process group; longer than the pool's watchdog, which shows every hung rank's stacks."""


def work(connection: Connection, folder: str, slot: int) -> None:
    """Serve tasks until the parent closes the pipe: the main function of a worker."""
    end_with_parent.ending_with(os.getppid(), signal.SIGKILL)()
    # Its own children would be started in its own way; a rank under torchrun has the platform's
    # default.
    multiprocessing.set_start_method(None, force=True)
    output = open(Path(folder) / f"worker{slot}.log", "ab", buffering=0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    stacks = open(Path(folder) / f"worker{slot}.stacks", "w")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("USE_TF", "0")  # as in tests/hosts.py: half of a host's import
    import torch
    import torch.distributed  # noqa: F401  (paid once, here)

    torch.set_num_threads(1)  # several ranks share the cores of a laptop
    connection.send_bytes(pickle.dumps("ready"))
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        # A task may have taken the signal, so for each one.
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        done, value = _answer(task)
        # A task that failed without a group may have failed while joining: torch has then counted
        # the group, and would look for the next one under another name than its peers.
        reusable = done or leave()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.send_bytes(pickle.dumps((done, value, reusable)))


def _answer(task: dict[str, Any]) -> tuple[bool, Any]:
    """Return one task's `(True, pickled result)` or `(False, (moment of failure, traceback))`."""
    environment, folder = dict(os.environ), os.getcwd()
    path, streams = list(sys.path), (sys.stdout, sys.stderr)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logs, level = list(logging.root.handlers), logging.root.level
    try:
        os.environ.update(task["environment"])
        sys.path[:] = task["path"]
        leave()
        if task["group"] is not None:
            join(task["group"], task["rank"], task["world_size"])
        _seed(0)
        function, arguments = pickle.loads(task["call"])
        return True, pickle.dumps(function(*arguments))
    except BaseException:  # a rank must answer whatever happens, SystemExit included
        return False, (time.monotonic(), traceback.format_exc())
    finally:
        sys.stdout, sys.stderr = streams
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        logging.root.handlers[:] = logs  # a library that logs with none adds one, to old streams
        logging.root.setLevel(level)
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def join(file: str, rank: int, world_size: int) -> None:
    """Collective: form a group through `file`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_SECONDS),
    )
    # No rank runs, fails and leaves while another is still joining.
    dist.all_reduce(torch.zeros(1))


def leave() -> bool:
    """Leave every group; return whether there was one."""
    import torch
    import torch.distributed as dist

    joined = dist.is_initialized()
    if joined:
        if not hasattr(torch.nn.Module, "compile"):
            time.sleep(0.02)  # torch 2.0: see robomimic_ddp/distributed/group.py
        dist.destroy_process_group()
    return joined


def _seed(seed: int) -> None:
    """The same streams on every rank for every task: no test depends on its neighbours."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
