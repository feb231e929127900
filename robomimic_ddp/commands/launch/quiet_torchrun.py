"""`python -m robomimic_ddp.commands.launch.quiet_torchrun`: torchrun without its own traceback. The
last thing printed is the command that resumes, if the ranks have printed one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
)
from torch.distributed.run import main as torchrun

from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.launch.evaluation import Evaluation
from robomimic_ddp.config import env
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import quiet_streams
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED
from robomimic_ddp.terminal import print_clean

_LOOK_SECONDS, _STUCK_SECONDS = 5.0, 45.0
"""torchrun asks for its ranks' exit codes every 0.1 s (5 s in older torch), and for 30 s not while
it ends some.
"""
_ENDS = (signal.SIGTERM, signal.SIGINT)
"""Signals that torchrun handles once it has started its ranks; before that, the first process of a
container, to which Linux sends none that it does not handle, would wait for other nodes.
"""
_STORE_ERROR = getattr(dist, "DistError", RuntimeError)
"""Where the first node is lost after all have met; torch 2.0 has no type for it."""
_WAIT_SECONDS = 60.0
"""After so long a launcher says that it waits for other nodes."""
_HANDLER_SECONDS = 1.0
"""So long Python's handler of a signal may take to run: not while torch connects, in C++."""


@quiet_streams.without_errors()  # scripts read the code; Ctrl-C ends `| tee`, too
def main() -> int:
    """Run torchrun's command line. Returns 75 if the ranks have stopped on request, 1 if a rank has
    failed or the nodes cannot meet, and 128 + its number after a signal to torchrun, which does not
    tell how its ranks have ended.
    """
    begun, ended = threading.Event(), threading.Event()
    handling = training_process.handling(_ENDS, _on_signal)
    with env.resume_note() as note, _ranks(begun) as ranks, _ending(begun, ended, note), handling:
        evaluation = Evaluation(note, env.evaluation())
        if hasattr(os, "waitid"):
            stuck = (ranks, evaluation, ended)
            threading.Thread(target=_end_if_stuck, args=stuck, daemon=True).start()
        waiting = (threading.get_ident(), ended)
        threading.Thread(target=_say_that_nodes_are_missing, args=waiting, daemon=True).start()
        try:
            torchrun()
            evaluation.end(is_complete=True)
        except SignalException as interrupt:
            outcome = f"the ranks have ended after {signal.Signals(interrupt.sigval).name}"
            outcome, code = outcome if ranks else _none(interrupt.sigval), 128 + interrupt.sigval
        except ChildFailedError as failure:
            outcome, code = "the ranks have stopped on request", EXIT_STOPPED
            codes = {rank.exitcode for rank in failure.failures.values()}
            # torchrun sends SIGTERM to ranks that end a moment later.
            if EXIT_STOPPED not in codes or codes - {EXIT_STOPPED, -signal.SIGTERM}:
                print_clean(failure, file=sys.stderr)
                outcome, code = "a rank has failed, see the root cause above", EXIT_REFUSED
        except (RendezvousError, _STORE_ERROR, socket.gaierror) as error:
            outcome, code = _not_met(error), EXIT_REFUSED
        except AttributeError as error:
            if "is_failed" not in str(error):  # torchrun has no result for a node too many
                raise
            outcome = f"the job at {_endpoint()} had all its nodes without this one, and has ended"
            code = EXIT_REFUSED
        else:
            return EXIT_REFUSED if evaluation.lacks_results else EXIT_DONE
        finally:
            ended.set()
            evaluation.end(is_complete=False)
        advice = f"; {note.read_text(encoding='utf-8')}" if note.exists() else ""
        print_clean(f"launch: {outcome}{advice}", file=sys.stderr)
        return code


def _on_signal(number: int, frame: Any) -> None:
    raise SignalException("before the ranks", signal.Signals(number))


def _none(number: int) -> str:
    return f"no ranks were started after {signal.Signals(number).name}"


@contextmanager
def _ending(begun: threading.Event, ended: threading.Event, note: Path) -> Iterator[None]:
    """For the block, end this process a second after one of _ENDS, unless torchrun has `begun` to
    start ranks or has `ended`, and remove the folder of `note`.
    """
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)

    def end() -> None:
        with open(signals, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] not in _ENDS or ended.wait(_HANDLER_SECONDS) or begun.is_set():
                    continue
                shutil.rmtree(note.parent, ignore_errors=True)
                print_clean(f"launch: {_none(number[0])}", file=sys.stderr)
                os._exit(128 + number[0])

    threading.Thread(target=end, daemon=True).start()
    former = signal.set_wakeup_fd(wakeup)
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        os.close(wakeup)


def _not_met(error: Exception) -> str:
    cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    what, here = cause[0].rstrip("."), env.host_name()
    frames = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    is_lost = isinstance(error, RendezvousConnectionError | RendezvousClosedError)
    # torchrun asks while its ranks run, and while a node waits for a place.
    if {"num_nodes_waiting", "_assign_worker_ranks"} & frames or (
        "next_rendezvous" in frames and is_lost
    ):
        return _job_is_over(what)
    if port := _argument("--master_port"):  # of a job on a single node
        return (
            f"port {port} is in use on {here}, or may not be used ({what}). Choose another with "
            "--port, or leave out --port (and MASTER_PORT) for a free one"
        )
    return (
        f"the nodes cannot meet at {_endpoint()}: {what}, on {here}. "
        "Expected the same command on as many nodes as --nodes says, within 10 minutes; node "
        "names (`hostname`) that resolve on all of them; clocks that differ by less than 15 "
        "seconds; and in --rdzv one of these nodes, with a port that is free and that no firewall "
        "blocks"
    )


def _job_is_over(cause: str) -> str:
    return (
        f"the job at {_endpoint()} has ended, or its first node or the network to it is lost "
        f"({cause}), so this node ({env.host_name()}) has ended too"
    )


def _endpoint() -> str:
    return _argument("--rdzv_endpoint") or "this machine"


def _argument(flag: str) -> str | None:
    """Return the value of a flag of torchrun's, None without it."""
    values = (word.partition("=")[2] for word in sys.argv if word.startswith(f"{flag}="))
    return next(values, None)


def _say_that_nodes_are_missing(torchrun_thread: int, ended: threading.Event) -> None:
    """Say once that torchrun has waited for other nodes for a minute."""
    since = time.monotonic()
    while not ended.wait(_LOOK_SECONDS):
        frames = traceback.walk_stack(sys._current_frames().get(torchrun_thread))
        if not any(frame.f_code.co_name == "next_rendezvous" for frame, _ in frames):
            since = time.monotonic()
        elif time.monotonic() - since > _WAIT_SECONDS:
            return print_clean(
                f"launch: this node ({env.host_name()}) has been waiting at {_endpoint()} for "
                f"{_WAIT_SECONDS:.0f} s: the job starts there once --nodes nodes have joined, each "
                "with a different name (`hostname`); a node too many never starts",
                file=sys.stderr,
            )


@contextmanager
def _ranks(begun: threading.Event) -> Iterator[Sequence[int]]:
    """For the block, the process ids of the ranks that torchrun has started last; `begun` is set
    before the first of them starts.
    """
    ranks: list[int] = []
    begin = PContext.start

    def start(context: PContext) -> None:
        begun.set()
        begin(context)
        ranks[:] = context.pids().values()

    with swapped(PContext, "start", start):
        yield ranks


def _end_if_stuck(ranks: Sequence[int], evaluation: Evaluation, ended: threading.Event) -> None:
    """End this process when one of `ranks` has ended and torchrun does not ask how: it waits for a
    node that is lost, until TCP gives up, about 16 minutes later. Returns once torchrun has
    `ended`. Other processes are not asked: in a container, orphans of the ranks may be ours.
    """
    rank, since = None, time.monotonic()
    while not ended.wait(_LOOK_SECONDS):
        before, rank = rank, next(filter(_has_ended, tuple(ranks)), None)
        if rank is None or rank != before:
            since = time.monotonic()
        elif time.monotonic() - since > _STUCK_SECONDS:
            evaluation.end(False)
            print_clean(
                f"launch: a rank of this node ({env.host_name()}) has ended, see its error above; "
                f"the launcher at {_endpoint()} does not answer, so this one ends alone",
                file=sys.stderr,
            )
            os._exit(EXIT_REFUSED)


def _has_ended(rank: int) -> bool:
    """Return whether a rank has ended and torchrun has not asked how."""
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, rank, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
