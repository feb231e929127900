"""One worker process of the pool: takes a task, runs it as a rank of a gloo group, answers.

A worker lives for the whole test session, and so does its group as long as every task leaves it as
it was. A task that fails, leaves or replaces the group, or adds another one, cannot spoil the next:
the worker leaves the group, and the pool forms another.
"""

from __future__ import annotations

import ctypes
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
import weakref
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

COLLECTIVE_TIMEOUT_SECONDS = 300.0
"""Of the process group; longer than the pool's watchdog, which shows every hung rank's stacks."""


def work(connection: Connection, folder: str, slot: int) -> None:
    """Main function of a worker: serves tasks until the parent closes the pipe."""
    _die_with_parent()
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
    membership = Membership()
    connection.send_bytes(pickle.dumps("ready"))
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        # A task may have taken the signal, so for each one.
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        done, value = _answer(task, membership)
        count = membership.count() if done else None
        reusable = count is not None or membership.leave() or done
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.send_bytes(pickle.dumps((done, value, reusable, count)))


def _answer(task: dict[str, Any], membership: Membership) -> tuple[bool, Any]:
    """One task's `(True, pickled result)` or `(False, (moment of failure, traceback text))`."""
    environment, folder = dict(os.environ), os.getcwd()
    path, streams = list(sys.path), (sys.stdout, sys.stderr)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logs, level = list(logging.root.handlers), logging.root.level
    try:
        return True, pickle.dumps(_run(task, membership))
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


def _run(task: dict[str, Any], membership: Membership) -> Any:
    import torch
    import torch.distributed as dist

    os.environ.update(task["environment"])
    sys.path[:] = task["path"]
    membership.join(task["group"], task["rank"], task["world_size"])
    _seed(0)
    function, arguments = pickle.loads(task["call"])
    result = function(*arguments)
    # No rank closes its sockets while another still uses them: that would read as a second fault.
    if task["group"] is not None and dist.is_initialized():
        total = torch.tensor(task["number"])
        dist.all_reduce(total)
        assert total == task["number"] * dist.get_world_size(), (
            "the ranks have not made the same collectives: the last one met another than itself"
        )
    return result


class Membership:
    """This worker's process group."""

    def __init__(self) -> None:
        self._file: str | None = None
        self._group: Any = lambda: None  # a weak reference: sockets close when a task destroys it

    def join(self, file: str | None, rank: int, world_size: int) -> None:
        """Collective, unless this rank and all others are in the group already that they formed
        through `file`. None: in no group.
        """
        import torch
        import torch.distributed as dist

        if file is not None and file == self._file:
            return
        self.leave()
        if file is None:
            return
        dist.init_process_group(
            "gloo",
            init_method=f"file://{file}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_SECONDS),
        )
        # No rank runs, fails and leaves while another is still joining.
        dist.all_reduce(torch.zeros(1))
        self._file, self._group = file, weakref.ref(dist.group.WORLD)

    def count(self) -> int | None:
        """How many groups this rank has formed since it joined, which torch names the next one by
        (all ranks must agree); None unless it is in the group that it joined and in no other.
        """
        import torch.distributed as dist

        world = dist.distributed_c10d._world
        joined = dist.is_initialized() and self._group() is dist.group.WORLD
        return world.group_count if joined and len(world.pg_map) == 1 else None

    def leave(self) -> bool:
        """Closes the sockets; this is how other ranks hear of a failure, so it comes last.

        Returns whether there was a group. A task that failed without one may have failed while
        joining: torch has then counted the group, and would look for the next one under another
        name than its peers.
        """
        import torch
        import torch.distributed as dist

        self._file, self._group = None, lambda: None
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


def _die_with_parent() -> None:
    """On Linux, a worker whose pytest was killed is killed too (PR_SET_PDEATHSIG = 1)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
