"""Passes over several ranks, simulated in one process: exact, continued, counted, reproducible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from robomimic_ddp.config import machine
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.order.windows import picked_windows
from tests.rlds.conftest import CAMERAS, LENGTHS
from tests.rlds.loading import one_pass, stream, wait_until_idle


@pytest.mark.parametrize("world", [1, 3])
def test_every_pass_is_exact_over_ranks_and_nothing_is_lost_over_a_run(load, world):
    train, _ = load()
    total, batch, passes = len(train), 3, 3
    loaders = [make_loader(train, batch, rank, world, 7) for rank in range(world)]
    streams = [[] for _ in range(world)]
    for _ in range(passes):
        lengths = {len(loader) for loader in loaders}
        assert len(lengths) == 1
        for rows, loader in zip(streams, loaders):
            batches = [b["index"].tolist() for b in loader]
            assert len(batches) == next(iter(lengths)) and all(len(b) == batch for b in batches)
            rows.extend(itertools.chain(*batches))
    # Windows of a pass that did not fill a batch come first in the next pass.
    drawn_by_pass = []
    for number in range(passes - 1):
        shares = []
        for rank, rows in enumerate(streams):
            start = sum(share_size(train, 7, p, rank, world) for p in range(number))
            shares.append(rows[start : start + share_size(train, 7, number, rank, world)])
        drawn = list(itertools.chain(*shares))
        assert len(drawn) == len(set(drawn)) == total
        drawn_by_pass.append(shares)
    assert drawn_by_pass[0] != drawn_by_pass[1]
    delivered = sum(len(rows) for rows in streams)
    assert 0 <= passes * total - delivered < batch * world


def share_size(dataset, seed, number, rank, world):
    """Windows that pass `number` gives to `rank`."""
    return plan_of(dataset, seed, number, rank, world).pieces.windows


def plan_of(dataset, seed, number, rank, world):
    """What `rank` reads in pass `number` of a run that nothing changes."""
    schedule = PassSchedule.over(
        dataset.table.file, dataset.table.per_pass, seed, 0, [(Segment(world, 1, 4), 0)]
    )
    return dataset.table.part_plan(schedule, number, rank)


def test_epochs_shorter_than_a_pass_continue_the_stream(load):
    train, _ = load()
    whole = stream(make_loader(train, 3, 1, 2, 0), 40)
    loader, pieces = make_loader(train, 3, 1, 2, 0), []
    for _ in range(8):
        # As hosts do it: iter() at the start of each epoch, again when the pass ends inside it.
        iterator = iter(loader)
        for _ in range(5):
            try:
                batch = next(iterator)
            except StopIteration:
                iterator = iter(loader)
                batch = next(iterator)
            pieces.extend(batch["index"].tolist())
    assert pieces == whole
    assert loader.pass_number >= 2


def test_order_is_reproducible_whatever_the_threads(load):
    one, many = (load(num_parallel_calls=number)[0] for number in (1, 7))
    loaders = [make_loader(data, 4, 0, 2, 5, cores=7) for data in (one, many)]
    assert [loader.batching.threads for loader in loaders] == [1, 7]
    first, second = (stream(loader, 30) for loader in loaders)
    assert first == second
    assert first != stream(make_loader(many, 4, 0, 2, 6), 30)
    assert first[: len(one) // 2] != sorted(first[: len(one) // 2])


def test_threads_are_the_ranks_share_of_its_node(load, monkeypatch):
    """Ranks on other nodes take no core of this one."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 12)
    train, _ = load()
    loaders = [make_loader(train, 2, 0, 6, 5, cores=cores) for cores in (12, 4, None)]
    loaders.append(make_loader(train, 2, 0, 24, 5))
    assert [loader.batching.threads for loader in loaders] == [12, 4, 2, 1]


def test_digests_tell_ranks_and_passes_apart(load):
    train, _ = load()
    loaders = [make_loader(train, 4, rank, 2, 0) for rank in range(2)]
    before = [loader.digest() for loader in loaders]
    assert before[0] != before[1]
    for _ in loaders[0]:
        pass
    assert loaders[0].digest() not in before


def test_every_frame_is_decoded_once(load):
    """Those of batches that are made ahead are counted apart."""
    train, _ = load(cameras=CAMERAS, frame_stack=2)
    loader = make_loader(train, 4, 2, 3, 0)
    for _ in range(3):
        one_pass(loader)
    wait_until_idle(loader)
    assert loader.frames_delivered == loader.samples_delivered * 2 * 3
    assert loader.frames_decoded == loader.frames_delivered + loader.frames_prefetched


def planned(plan):
    """The indices of a plan, by the arithmetic alone, in no order."""
    return [
        int(plan.base[p] + picked_windows(n, plan.count[p], plan.per_pass[p], plan.pick[p]))
        for p in range(len(plan.file))
        for n in range(plan.pieces.start[p], plan.pieces.stop[p])
    ]


def test_validation_comes_once_over_ranks_and_shares_no_episode(load):
    train, valid = load(experiment={"validate": True}, validation_fraction=0.3)
    seen = []
    for rank in range(3):
        loader = make_loader(valid, 4, rank, 3, 0)
        batches = [batch["index"].tolist() for batch in loader]
        assert len(batches) == len(loader) and all(len(batch) == 4 for batch in batches[:-1])
        assert batches == [batch["index"].tolist() for batch in loader]  # the same every time
        mine = list(itertools.chain(*batches))
        plan = valid.table.valid_plan(rank, 3, len(valid), 1)
        assert sorted(mine) == sorted(planned(plan)) != mine
        seen.extend(mine)
    assert len(seen) == len(set(seen)) == len(valid)
    ends = np.cumsum(LENGTHS)
    trained = planned(plan_of(train, 0, 0, 0, 1))
    assert not set(np.searchsorted(ends, seen, "right")) & set(
        np.searchsorted(ends, trained, "right")
    )
    assert len(train) + len(valid) == len(load()[0])


def test_validation_of_n_steps_counts_windows_over_all_ranks(load):
    """n steps are n of the host's batches, over all ranks together, whatever a rank's batch is."""
    _, valid = load(experiment={"validate": True}, validation_fraction=0.4, batch_size=4)
    for world, rank_batch in ((1, 4), (2, 3)):
        loaders = [make_loader(valid, rank_batch, rank, world, 0) for rank in range(world)]
        parts = [loader.limited(2) for loader in loaders]
        assert loaders[0].limited(2) is parts[0]
        seen = one_pass(*parts)
        assert len(seen) == len(set(seen)) == 8 == sum(part.windows for part in parts)


def test_a_rank_may_have_no_validation_batch(load):
    _, valid = load(experiment={"validate": True}, validation_fraction=0.01)
    assert len(valid) < 60
    world = len(valid) + 1
    plans = [valid.table.valid_plan(rank, world, len(valid), 1) for rank in range(world)]
    sizes = [len(planned(plan)) for plan in plans]
    assert sum(sizes) == len(valid) and sizes.count(0) == 1
    loader = make_loader(valid, 4, sizes.index(0), world, 0)
    assert len(loader) == 0 and list(loader) == []
