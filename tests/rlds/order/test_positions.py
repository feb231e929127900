"""A stream that resumes at a saved position delivers exactly what would have come."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from robomimic_ddp.config import options
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.planning.plan import make_plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.training.run import Run
from robomimic_ddp.training.run_parts import Built
from robomimic_ddp.training.state import run_fingerprint
from tests.rlds.conftest import LENGTHS
from tests.rlds.loading import stream, wait_until_idle

FEWER = {"subsample_length": 4}
"""Of a config with fewer windows."""


def saved(loader):
    """The position as a file keeps it, of less than 1 MB."""
    text = json.dumps(loader.position())
    assert len(text) < 1_000
    return json.loads(text)


@pytest.mark.parametrize("world, rank, batches", [(1, 0, 40), (2, 1, 0), (2, 1, 40), (3, 0, 9)])
def test_the_same_ranks_resume_at_the_window(load, world, rank, batches):
    train, _ = load()
    whole = make_loader(train, 3, rank, world, 7)
    stream(whole, batches)
    position = saved(whole)
    resumed = make_loader(train, 3, rank, world, 7)
    assert "resumes after" in resumed.seek(position, world, 1)
    assert len(resumed) == len(whole) and resumed.pass_number == whole.pass_number
    assert stream(resumed, 25) == stream(whole, 25)
    assert resumed.position() == whole.position()
    assert resumed.order_digest() == whole.order_digest()


def test_the_digest_of_the_order_is_all_ranks_and_tells_one_order_from_another(load):
    """ddp.verify compares it. With other windows, seed or pass the order is another."""
    (train, _), (other, _) = (load(shuffle_buffer_size=6, **more) for more in ({}, FEWER))
    ranks = [make_loader(train, 3, rank, 2, 7) for rank in range(2)]
    assert len({loader.order_digest() for loader in ranks}) == 1
    others = [make_loader(other, 3, 0, 2, 7), make_loader(train, 3, 0, 2, 8)]
    whole = make_loader(train, 3, 0, 2, 7)
    stream(whole, len(whole))
    digests = {loader.order_digest() for loader in (ranks[0], *others, whole)}
    assert len(digests) == 4
    one, two = (loader._schedule.row(0).columns() for loader in (ranks[0], others[0]))
    assert ranks[0].position()["legs"] == others[0].position()["legs"]
    assert any(a.tobytes() != b.tobytes() for a, b in zip(one, two))


def test_delivered_windows_are_neither_read_again_nor_decoded(load):
    """A buffer of 3 windows: of 50 records only those are read that it held, and what follows."""
    train, _ = load(shuffle_buffer_size=3)
    whole = make_loader(train, 3, 0, 1, 7)
    stream(whole, 20)
    resumed = make_loader(train, 3, 0, 1, 7)
    resumed.seek(whole.position(), 1, 1)
    part, taken = resumed._start()
    plan = resumed._plan_of(part)
    read = plan.block(plan.block_of(taken), taken).records
    stream(resumed, 2)
    wait_until_idle(resumed)  # it reads ahead beside us
    assert resumed.frames_delivered > 0
    assert resumed.frames_decoded == resumed.frames_delivered + resumed.frames_prefetched
    assert resumed.frames_decoded < whole.frames_delivered, "passed-over windows were decoded"
    assert 0 < read[:, 3].sum() <= len(train) - 60 + 2 * 3 + 2 * max(LENGTHS)


@pytest.mark.parametrize("changes", [[(2, 4)], [(1, 2), (3, 1), (2, 3)]])
def test_other_ranks_or_batches_take_what_is_left_of_the_pass(load, changes):
    """Each window once in the pass, whoever was to read it before."""
    train, _ = load()
    loaders = [make_loader(train, 3, rank, 2, 7) for rank in range(2)]
    taken = [index for loader in loaders for index in stream(loader, 20)]
    passed, world = loaders[0].pass_number, 2
    assert passed >= 1
    for world_after, batch in changes:
        position = saved(loaders[0])
        assert all(saved(loader) == position for loader in loaders)
        left = (passed + 1) * len(train) - len(taken)
        loaders = [make_loader(train, batch, rank, world_after, 7) for rank in range(world_after)]
        for loader in loaders:
            said = loader.seek(position, world, 5)
            assert f"the {left} windows that pass {passed + 1} has not" in said
            assert loader.pass_number == passed and len(loader) == left // (batch * world_after)
            assert loader.batches_left() == len(loader)
            taken += stream(loader, 2)
        world = world_after
    rest = loaders[0]._schedule.remaining(2)
    assert rest.windows == left - 2 * batch * world
    for loader in loaders:
        taken += stream(loader, len(loader) - 2)
    # All but what fills no batch has come as often as there were passes.
    times = {index: taken.count(index) for index in taken}
    missing = (passed + 1) * len(train) - len(taken)
    assert 0 <= missing < batch * world and len(times) == len(train)
    assert set(times.values()) <= {passed, passed + 1}
    assert list(times.values()).count(passed) == missing


def test_a_rest_that_fills_no_batch_is_none(load):
    train, _ = load()
    before = [make_loader(train, 3, rank, 2, 7) for rank in range(2)]
    for loader in before:
        stream(loader, 13)
    after = make_loader(train, 9, 0, 3, 7)
    after.seek(before[0].position(), 2, 0)
    assert after.batches_left() == 0 and len(after) > 0


def differences_from(position, loader):
    """Return what makes it wrong to resume at `position` with `loader`."""
    data = {"samples": 0, "items": {}, "files": ""}
    now = {"config": {}, "statistics": {}, "data": data}
    saved = {"options": {"schedule": "steps"}, "samples_per_step": 4, "defines": now}
    saved["ranks"] = [{"data": position}]
    resolved = options.resolve()
    made = make_plan(LaunchEnv(), resolved, visible_gpus=0, use_cuda=False, batch_size=4)
    run = Run(Settings.of(resolved, made, seed=1), built=Built(loaders={"train": loader}))
    return [one.text for one in run_fingerprint.differences(saved, now, run) if one.wrong]


def test_a_place_says_whether_it_is_inside_a_pass(load):
    train, _ = load()
    loader = make_loader(train, 3, 0, 1, 7)
    assert not loader.position()["inside"]
    stream(loader, 1)
    position = saved(loader)
    other = make_loader(train, 4, 0, 1, 7)
    other.seek(position, 1, 0)  # nothing of this segment is delivered
    assert position["inside"] and other.position()["inside"]
    assert differences_from(position, other) == []
    stream(loader, len(loader) - 1)
    assert not loader.position()["inside"]


def test_another_choice_of_windows_starts_the_pass_over(load):
    train, _ = load()
    whole = make_loader(train, 3, 0, 1, 7)
    stream(whole, 60)
    position = saved(whole)
    for other, seed in ((load(subsample_length=5)[0], 7), (train, 8)):
        loader = make_loader(other, 3, 0, 1, seed)
        said = loader.seek(position, 1, 3)
        assert f"pass {position['pass'] + 1} starts again" in said
        assert loader.pass_number == position["pass"] >= 1
        stream(loader, 1)
        found = differences_from(position, loader)
        assert ["in the middle of a pass: other episodes" in text for text in found] == [True]
        mixed = {"kind": "mixture", "members": {"1 arm": position, "0 gone": position}}
        now = {"kind": "mixture", "members": {"1 arm": loader.position(), "2 new": position}}
        found = differences_from(mixed, SimpleNamespace(position=lambda now=now: now))
        assert [text.partition(":")[0] for text in found] == ["data arm, in the middle of a pass"]
        # An epoch of a pass each: what comes next is whole, so other data may follow.
        assert differences_from({**position, "inside": False}, loader) == []
    assert "first pass" in loader.seek({"kind": "windows"}, 1, 3)
