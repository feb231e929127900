"""A rank that keeps the others waiting is named: while they wait, and when their time is up."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from robomimic_ddp import verify
from robomimic_ddp.distributed import entry_point, group, watchdog, watchdog_thread
from robomimic_ddp.distributed.watchdog_thread import Watchdog
from robomimic_ddp.errors import VerifyError


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def come_late(late_rank, seconds, timeout, steps):
    """(collective's error is one of time, what is missing, warnings) of this rank."""
    lines = Lines()
    logging.getLogger("robomimic_ddp.distributed.watchdog_thread").addHandler(lines)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    group.leave()  # not at once, in torch 2.0
    method = f"file://{os.environ['RANKS_RENDEZVOUS']}-again"
    rendezvous = {"init_method": method, "rank": rank, "world_size": world_size}
    answer = None
    with group.process_group("gloo", timeout, **rendezvous):
        watchdog.reached("epoch 3 train")
        for _ in range(steps + (rank != late_rank)):
            watchdog.stepped()
        if rank == late_rank:
            time.sleep(seconds)
        else:
            watchdog.reached("epoch 3 train log")
        try:
            group.gather_objects(rank)
        except RuntimeError as error:
            answer = (
                entry_point.is_time_limit(error) or entry_point.is_follow_up(error),
                watchdog.missing(),
            )
            time.sleep(seconds)  # a real rank ends here, and its sockets with it
        # No farewell in a broken group.
        dist.destroy_process_group()
        dist.init_process_group("gloo", **{**rendezvous, "init_method": method + "-end"})
    return answer, lines.lines


@pytest.mark.timeout(120)
def test_the_rank_that_others_wait_for_is_named(ranks):
    zero, one, two = ranks.run(come_late, 2, 6.0, 3.0, 17, world_size=3)
    for rank, (answer, warnings) in ((0, zero), (1, one)):
        in_time, missing = answer
        assert in_time
        assert (
            f"rank {rank} waited at: epoch 3 train log, for at least 3 s (ddp.timeout)" in missing
        )
        assert "rank 2 is at: epoch 3 train, step 17 (last heard from " in missing
        assert missing.count("is at:") == 1  # the other rank that waits is not blamed
        assert len(warnings) == 1 and "Not there yet: rank 2 is at: epoch 3 train" in warnings[0]
    assert not two[1]


def wait_with_several_in_flight():
    """Whether the error of a rank that waits for the last of three collectives is one of time."""
    hurried = dist.new_group(backend="gloo", timeout=timedelta(seconds=2))
    answer = None
    if dist.get_rank() == 0:
        for _ in range(2):
            dist.all_reduce(torch.zeros(1), group=hurried, async_op=True)
        try:
            dist.all_reduce(torch.zeros(1), group=hurried)
        except RuntimeError as error:  # the first one's timeout has closed the connection
            answer = entry_point.is_time_limit(error)
    dist.barrier()
    return answer


@pytest.mark.timeout(120)
def test_a_timeout_is_known_where_an_earlier_collective_ran_into_it(ranks):
    assert ranks.run(wait_with_several_in_flight, world_size=2) == [True, None]


class LostStore:
    """A store whose node is lost: torch waits for it without a limit."""

    def compare_set(self, *_):
        threading.Event().wait()

    set = compare_set


@pytest.mark.timeout(60)
def test_a_store_that_does_not_answer_is_named_and_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(watchdog_thread, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(os, "environ", {"MASTER_ADDR": "node01", "MASTER_PORT": "29400"})
    watchdog.begin(LostStore(), 1, 2, 0.5, ends_unheard=True)
    try:
        watchdog.on_nodes(["node01", "node02"])
        watchdog.reached("epoch 1 train")
        missing = watchdog.missing()
        assert "rank 1 (node02) waited at: epoch 1 train, for at least 0.5 s" in missing
        assert "in the launcher at node01:29400, does not answer, so that node or the" in missing
        assert watchdog.first_to_fail() and not watchdog.somebody_failed()
        assert watchdog.name(watchdog.failed_rank()) == "rank 0 (node01)"
        time.sleep(0.7)
    finally:
        watchdog.end()
    logged = [record.getMessage() for record in caplog.records]
    for words in ("has been waiting for", "NCCL ends this rank now"):
        assert ["does not answer" in text for text in logged if words in text] == [True], logged


def disagree() -> str:
    """Collective: the message where the ranks of two nodes have unequal values."""
    watchdog.begin(dist.HashStore(), group.rank(), 2, 60.0)
    try:
        watchdog.on_nodes(["node01", "node02"])
        with pytest.raises(VerifyError) as caught:
            verify.require_equal("at start", {"batch per rank": 4 + 2 * group.rank()})
    finally:
        watchdog.end()
    return str(caught.value)


def test_unequal_values_are_shown_with_their_nodes(ranks):
    for message in ranks.run(disagree):
        assert "found rank 0 (node01): 4; rank 1 (node02): 6, so rank(s) [1] differ" in message


def test_ranks_of_several_nodes_are_named_with_them():
    mine, _ = two_in_their_first_step()
    mine.stepped()
    mine.hosts = ["node01", "node01"]
    assert mine.late().startswith("rank 1 is at: ")
    mine.hosts = ["node01", "node02"]
    assert mine.late().startswith("rank 1 (node02) is at: ")


def two_in_their_first_step():
    store = dist.HashStore()
    mine, other = Watchdog(store, 0, 2, 60.0), Watchdog(store, 1, 2, 60.0)
    for one in (mine, other):
        one.reached("epoch 1 train")
        one.stepped()
        one._publish()
    return mine, other


def test_a_rank_within_the_same_place_is_late_by_its_steps():
    mine, other = two_in_their_first_step()
    assert mine.late() == ""
    mine.stepped()
    assert mine.late().startswith("rank 1 is at: epoch 1 train, step 1 (last heard from 0 s ago)")
    assert other.late() == ""


def test_how_old_a_place_is_has_nothing_to_do_with_the_clocks_of_the_nodes(monkeypatch):
    with monkeypatch.context() as other_node:
        for clock, now in (("time", time.time), ("monotonic", time.monotonic)):
            other_node.setattr(time, clock, lambda now=now: now() - 9000.0)
        mine, other = two_in_their_first_step()
    mine._met = time.monotonic() - 7.0
    mine.stepped()
    assert "step 1 (last heard from 7 s ago)" in mine.late()


def test_a_rank_of_which_nothing_is_heard_is_named_though_it_is_in_the_same_step():
    mine, other = two_in_their_first_step()
    assert mine.verdict().endswith("shows which")
    mine.hosts = ["node01", "node02"]
    mine._met -= 59.0
    assert mine.verdict().endswith(": nothing has been heard from rank 1 (node02) for 59 s")
    other.stepped()
    other._met -= 58.0
    other._publish()
    assert "a different collective: rank 1 (node02) is at: " in mine.verdict()


def test_a_rank_that_hangs_before_its_forward_is_behind_those_in_their_backward():
    mine, other = two_in_their_first_step()
    mine.began()
    assert mine.late().startswith("rank 1 is at: epoch 1 train, step 1 (last heard from 0 s ago)")
    other.began()
    other._publish()
    assert mine.late() == "" == mine.ahead()


def test_a_rank_that_has_reported_nothing_has_not_started():
    assert Watchdog(dist.HashStore(), 0, 2, 60.0).late().startswith("rank 1 is at: not started")


@pytest.mark.parametrize("unheard, limited, words", [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_the_late_rank_is_named_before_nccl_ends_the_process(unheard, limited, words, caplog):
    """Its watchdog raises nothing that could be caught."""
    store = dist.HashStore()
    Watchdog(store, 1, 2, 60.0)._publish()
    watchdog.begin(store, 0, 2, 0.5, ends_unheard=bool(unheard))
    try:
        limit = nullcontext() if limited else watchdog.without_time_limit()
        with limit:
            watchdog.reached("epoch 1 train")
            time.sleep(0.7)
        time.sleep(0 if limited else 0.2)  # until the next place: the time before counts no more
    finally:
        watchdog.end()
    reported = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(reported) == words
    for text in reported:
        assert text.startswith("rank 0 waited at: epoch 1 train, for at least 0.5 s (ddp.timeout)")
        assert "Not there yet: rank 1 is at: start" in text
        assert text.endswith("NCCL ends this rank now")


@pytest.mark.parametrize(
    "world, published, named", [(2, None, 1), (3, None, None), (3, 2, 2), (2, 1, 1)]
)
def test_the_rank_that_failed_is_named_where_it_is_known(world, published, named, monkeypatch):
    store = dist.HashStore()
    if published is not None:
        failed = Watchdog(store, published, world, 9.0)
        monkeypatch.setattr(watchdog, "_current", [failed])
        assert watchdog.first_to_fail()
    monkeypatch.setattr(watchdog, "_current", [Watchdog(store, 0, world, 9.0)])
    assert watchdog.failed_rank() == named
