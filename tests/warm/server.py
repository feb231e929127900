"""A process that has imported what is slow to import, and forks to run Python's `-m`.

    python -m tests.warm.server SOCKET host|rlds     # started by tests/warm/client.py

A job is `python -m module arguments` in a fork of this process: a separate process and session
with the caller's folder, variables, output files and import path, that ends as Python ends. Under
`torch.distributed.run` the agent is such a job, and its ranks are its own children: forked before
the agent begins (it has threads later), each waits until the agent starts it. So do the workers of
`robomimic_ddp evaluate`. All else is torchrun's own. What is missing against a cold start is
Python's own start and the imports of other people's packages.

This process adopts the processes that outlive their parents, so that what a job leaves behind is
found among its descendants.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import os
import runpy
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from tests.warm import modules
from tests.warm.ranks import WORKERS, Nursery

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main() -> None:
    """Serves one job after the other until the client closes its end."""
    connection = Connection(int(sys.argv[1]))
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    preload(modules.RLDS if sys.argv[2] == "rlds" else modules.HOST)
    own_path = [path for path in sys.path if path not in ("", os.getcwd())]
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            become(job, own_path)
            return  # and ends as any Python does
        connection.send(_status_of(pid))


def preload(names: tuple[str, ...]) -> None:
    """Imports what is installed of `names`. A fork has one thread only, so there must be one."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for name in modules.RUN_AS_MAIN:
        if sys.modules.pop(name, None) is not None:
            parent, _, child = name.rpartition(".")
            delattr(sys.modules[parent], child)
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "threads were begun"
    gc.collect()
    gc.freeze()  # its pages stay shared


def _status_of(job: int) -> int:
    """Waits for the job, as `subprocess` tells it; what it leaves is reaped on the way."""
    while True:
        pid, status = os.wait()
        if pid == job:
            return os.waitstatus_to_exitcode(status)


def become(job: dict[str, Any], own_path: list[str]) -> None:
    """In the fork: runs the job's module as `python -m` does, and returns or raises SystemExit."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(job["folder"])
    enter(job["words"], job["variables"], own_path, job["ranks"])


def enter(words: list[str], variables: dict[str, str], own_path: list[str], ranks: int = 0) -> None:
    """Runs `python words` ([-u] -m module arguments) with `variables`; with a number of `ranks`,
    torchrun's.
    """
    os.environ.clear()
    os.environ.update(variables)
    added = variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [os.getcwd(), *filter(None, added), *own_path]
    importlib.invalidate_caches()
    unbuffered = words[0] == "-u"
    _open_streams(unbuffered)
    _forget_this_package()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # each process has a different stream
    plays = words[:3] == ["-m", "robomimic_ddp", "evaluate"]
    if ranks or plays:
        nursery = Nursery(ranks or WORKERS, lambda given, env: enter(given, env, own_path))
        if nursery.rank_has_run:
            return
        (nursery.start_workers if plays else nursery.start_ranks)()
    flag, module, *arguments = words[unbuffered:]
    assert flag == "-m", words
    sys.argv[:] = ["-m", *arguments]
    sys.modules["__main__"] = type(sys)("__main__")
    runpy._run_module_as_main(module)  # what `python -m` calls


def _open_streams(unbuffered: bool) -> None:
    """sys.stdout and sys.stderr as Python opens them onto files, with -u or without."""
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = open(number, "wb", 0, closefd=False)
        buffer = raw if unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors=errors,
            line_buffering=number == 2,
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _forget_this_package() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    main()
