"""Ranks that were asked to stop do so after the same step, whoever heard the signal, and when."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist

from robomimic_ddp.distributed import entry_point, group, watchdog
from robomimic_ddp.distributed import signals as stopping
from robomimic_ddp.distributed.signals import SignalListener, Stopper
from robomimic_ddp.errors import EXIT_STOPPED
from tests.hosts import Host, python
from tests.ranks.pool import RankError


def stop_after(asked_rank, asked_step, number, times):
    """The step after which this rank stops; other collectives run between, as in training."""
    before = signal.getsignal(number)
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        for step in range(1, 10):
            if group.rank() == asked_rank and step == asked_step:
                for _ in range(times):
                    os.kill(os.getpid(), number)
            total = group.sum_over_ranks(torch.ones(5))
            assert total.tolist() == [group.world_size()] * 5
            if stopper.agreed():
                break
    assert signal.getsignal(number) == before
    return step, stopper.received


@pytest.mark.parametrize("world, asked_rank, asked_step", [(2, 0, 1), (3, 1, 4)])
@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_all_ranks_stop_after_the_same_step(world, asked_rank, asked_step, number, ranks):
    found = ranks.run(stop_after, asked_rank, asked_step, number, 2, world_size=world)
    assert [step for step, _ in found] == [asked_step + 1] * world
    heard = [name for _, name in found]
    assert heard[asked_rank] == signal.Signals(number).name and heard.count(None) == world - 1


MANY = 200_000
"""A rank that waits for a core may take thousands of such steps before its answer is here."""


def after_many_steps() -> list:
    """Asked in a step of some microseconds, far from the first: steps in which ranks ask, and the
    one after which each stops.
    """
    stopper, asked = Stopper(), []
    with stopper.scope():
        stopper.listen()
        for step in range(1, MANY):
            if (group.rank(), step) == (1, 500):
                os.kill(os.getpid(), signal.SIGUSR1)
            if stopper.agreed():
                break
            asked += [step] * (stopper._pending is not None)
    return [step, asked]


def test_fast_steps_ask_together(ranks):
    (step, asked), other = ranks.run(after_many_steps)
    assert other == [step, asked]
    assert asked[:19] == list(range(1, 20)) and len(asked) < 200
    assert 500 <= step < MANY - 1


def between_epochs(asked_rank):
    """Asked in the last step of an epoch: its answer is still on its way when the epoch ends."""
    stopper, answers = Stopper(), []
    with stopper.scope():
        stopper.listen()
        for epoch in range(3):
            for step in range(3):
                if (group.rank(), epoch, step) == (asked_rank, 1, 2):
                    os.kill(os.getpid(), signal.SIGUSR1)
                assert not stopper.agreed()
            answers.append(stopper.agreed_at_last())
            if answers[-1]:
                return answers
    return answers


@pytest.mark.parametrize("asked_rank, expected", [(0, [False, True]), (7, [False] * 3)])
def test_between_epochs(asked_rank, expected, ranks):
    assert ranks.run(between_epochs, asked_rank) == [expected] * 2


def test_one_process():
    stopper = Stopper()
    assert not stopper.agreed() and not stopper.agreed_at_last()
    with stopper.scope():
        stopper.listen()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stopper.agreed() and stopper.agreed_at_last()


def wait_in_c(tell_failure, ask):
    """As in a synchronisation with a GPU that waits for a lost rank: no line of Python is run."""
    stopping.PATIENCE_SECONDS, stopping.FAILED_SECONDS = (3600, 0.2) if tell_failure else (0.2, 60)
    stopper = Stopper()
    stopper.on_request = lambda: print("last words", flush=True)
    stopper.on_lost_launcher = lambda: print("how to resume", flush=True)
    with stopper.scope():
        stopper.listen()
        store = dist.distributed_c10d._get_default_store()
        watchdog.begin(store, group.rank(), group.world_size(), 600.0)
        if group.rank() == 0 and tell_failure:
            watchdog.first_to_fail()
        group.barrier()
        if group.rank() == 1:
            signals = [signal.SIGUSR1] * ask + [signal.SIGTERM]
            later = [
                threading.Timer(0.2 + n, os.kill, (os.getpid(), s)) for n, s in enumerate(signals)
            ]
            for timer in later:
                timer.start()
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
        watchdog.end()


@pytest.mark.parametrize("tell_failure, ask", [(False, 0), (True, 0), (False, 1)])
def test_patience_ends_while_the_main_thread_waits_in_c(tell_failure, ask, ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(wait_in_c, tell_failure, ask, timeout=15.0)
    reported = caught.value.by_rank[1]
    assert f"died with exit code {128 + signal.SIGTERM}" in reported
    assert ("last words" in reported) == bool(ask), "torchrun's own SIGTERM is no request"
    assert ("how to resume" in reported) == (not ask)


def sleeping_child():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    return child


def fork_and_end_the_child():
    """SIGTERM for a process that this one has forked, as DataLoader's workers and simulators."""
    stopping.PATIENCE_SECONDS = 0.5
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        child = sleeping_child()
        time.sleep(0.3)
        own_group = os.getpgid(child) == child
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        time.sleep(1.0)
    return os.WTERMSIG(status), stopper.received, own_group


def test_a_signal_to_a_forked_process_is_its_own(ranks):
    """And it does not hear of one to the group of this process, as torchrun and terminals send."""
    assert ranks.run(fork_and_end_the_child, world_size=1) == [(signal.SIGTERM, None, True)]


def stop_while_a_fork_lives():
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        child = sleeping_child()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_forked_process_that_lives_on_keeps_nobody_waiting(ranks):
    """Data workers do, until their loader is deleted."""
    ranks.run(stop_while_a_fork_lives, world_size=1, timeout=20.0)


def interrupt(times, apart):
    stopping.SAME_INTERRUPT_SECONDS = 0.3
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(apart)
        return stopper.agreed_at_last(), stopper.received


def test_a_second_interrupt_ends_at_once(ranks):
    """One of a terminal and the same one of torchrun come together, and are the first."""
    assert ranks.run(interrupt, 2, 0.05, world_size=1) == [(True, "SIGINT")]
    with pytest.raises(RankError, match=f"died with exit code {128 + signal.SIGINT}"):
        ranks.run(interrupt, 2, 0.5, world_size=1)


def ignore_and_listen(number):
    before = signal.signal(number, signal.SIG_IGN)
    stopper = Stopper()
    try:
        with stopper.scope():
            stopper.listen()
            os.kill(os.getpid(), number)
        return stopper.received
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_job_in_the_background_or_under_nohup_ignores_the_terminal(number, ranks):
    assert ranks.run(ignore_and_listen, number, world_size=1) == [None]


_STOPPED = """
import atexit, os, signal
from robomimic_ddp.distributed.entry_point import entry_point
from robomimic_ddp.errors import Stopped

@entry_point
def main():
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        atexit.register(os.kill, os.getpid(), number)
    raise Stopped()

main()
"""


def test_a_signal_to_a_rank_that_has_stopped_does_not_change_its_exit_code(tmp_path):
    """As torchrun's, where another rank was a moment faster."""
    (tmp_path / "stopped.py").write_text(_STOPPED)
    done = python(Host(tmp_path), "stopped")
    assert (done.returncode, done.stderr) == (EXIT_STOPPED, ""), done


def test_a_former_wakeup_descriptor_comes_back():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())
        try:
            stopper = Stopper()
            with stopper.scope():
                stopper.listen()
        finally:
            assert signal.set_wakeup_fd(before) == theirs.fileno()


def notice_after_torchrun():
    stopper, SignalListener.has_terminated = Stopper(), False
    with stopper.scope():
        stopper.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        while not SignalListener.has_terminated:
            time.sleep(0.01)
    entry_point._wait_for_launcher(3600.0)


def test_a_rank_that_torchrun_has_ended_before_it_noticed_waits_for_no_other_signal(ranks):
    """After kill -9 of a rank, the others waited for 15 s."""
    with pytest.raises(RankError, match="died with exit code 0"):
        ranks.run(notice_after_torchrun, world_size=1)


def wait_for_a_lost_rank():
    stopper = Stopper()
    if group.rank() == 1:
        time.sleep(0.5)
        dist.destroy_process_group()
        return None
    stopper.agreed()
    try:
        stopper.agreed_at_last()
    except RuntimeError as error:
        dist.destroy_process_group()
        return entry_point.is_follow_up(error), str(error)


def test_a_lost_rank_seen_by_the_stopper_is_a_follow_up(ranks):
    (is_follow_up, text), _ = ranks.run(wait_for_a_lost_rank)
    assert is_follow_up, text
