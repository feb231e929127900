"""Rotations, normalisation and the choice of episodes, each against an independent calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.index import normalization, splits
from robomimic_ddp.data.rlds.index.statistics import Index, Moments
from robomimic_ddp.data.rlds.schema import config as settings
from robomimic_ddp.data.rlds.schema.actions import convert_part, split_by_key
from robomimic_ddp.data.rlds.schema.fields import Part
from robomimic_ddp.data.rlds.schema.rotations import convert
from robomimic_ddp.errors import ConfigError, DataError


def about(axis, angle):
    """The rotation matrix about axis 0, 1 or 2."""
    turn = np.eye(3)
    one, two = [(1, 2), (2, 0), (0, 1)][axis]
    turn[one, one] = turn[two, two] = np.cos(angle)
    turn[one, two], turn[two, one] = -np.sin(angle), np.sin(angle)
    return turn


@given(st.tuples(*[st.floats(-7, 7)] * 3))
def test_rotation_is_the_first_two_rows_of_rz_ry_rx(angles):
    matrix = about(2, angles[2]) @ about(1, angles[1]) @ about(0, angles[0])
    rows = convert(np.array(angles), "euler_xyz", "rot_6d", np)
    assert np.allclose(rows, matrix[:2].ravel(), atol=1e-12)


def test_known_rotation():
    """A quarter turn about z maps x to y: rows (0, -1, 0) and (1, 0, 0)."""
    rows = convert(np.array([[0, 0, np.pi / 2]]), "euler_xyz", "rot_6d", np)
    assert np.allclose(rows, [[0, -1, 0, 1, 0, 0]], atol=1e-15)


def test_droid_parts_make_ten_numbers():
    turn = Part("pose", 3, 6, ("euler_xyz", "rot_6d"))
    parts = {
        "action/abs_pos": Part("pose", 0, 3),
        "action/abs_rot_6d": turn,
        "action/gripper_position": Part("gripper", 0, 1),
    }
    assert [part.size for part in parts.values()] == [3, 6, 1]
    pieces = split_by_key(np.arange(20.0).reshape(2, 10), parts)
    assert pieces["action/abs_rot_6d"].tolist() == [[3, 4, 5, 6, 7, 8], [13, 14, 15, 16, 17, 18]]
    plain = convert_part(np.arange(6.0)[None], Part("x", 2, 5), np)
    assert plain.tolist() == [[2, 3, 4]]


def raw_statistics(method, size=7, seed=0):
    """Statistics of random actions, one dimension constant."""
    values = np.random.RandomState(seed).normal(size=(50, size)) * 3
    values[:, 2] = 0.25
    mean = values.mean(0, keepdims=True)
    stats = {
        "n": 50,
        "mean": mean,
        "sqdiff": ((values - mean) ** 2).sum(0, keepdims=True),
        "min": values.min(0, keepdims=True),
        "max": values.max(0, keepdims=True),
    }
    return values, {"a": stats}, {"a": {"normalization": method}}


@pytest.mark.parametrize("method", [None, "min_max", "gaussian"])
@pytest.mark.parametrize("seed", range(5))
def test_scale_and_offset_are_the_hosts_to_the_bit(method, seed):
    host = pytest.importorskip("robomimic.utils.dataset")
    _, stats, config = raw_statistics(method, seed=seed)
    ours = normalization.action_normalization(stats, config)["a"]
    theirs = host.action_stats_to_normalization_stats(stats, config)["a"]
    for name in ("scale", "offset"):
        assert ours[name].dtype == theirs[name].dtype == np.float32
        assert np.array_equal(ours[name], theirs[name])


def test_min_max_fills_the_range_and_leaves_constants_at_zero():
    values, stats, config = raw_statistics("min_max")
    scale, offset, limit = normalization.vectors(
        normalization.action_normalization(stats, config), config
    )
    normalised = (values.astype(np.float32) - offset) / scale
    assert np.all(limit == 1) and np.abs(normalised).max() <= 1 + 1e-6
    moving = np.delete(normalised, 2, axis=1)
    assert np.allclose(moving.max(0), 1, atol=1e-5) and np.allclose(moving.min(0), -1, atol=1e-5)
    assert np.all(normalised[:, 2] == 0)


@pytest.mark.bad_input
@pytest.mark.parametrize("config", [{}, {"a": {"normalization": "bounds"}}])
def test_unknown_normalisation_is_named(config):
    with pytest.raises(ConfigError, match="action_config"):
        settings.normalization_method(config, "a")


def index(lengths, labelled, success, files):
    """An index whose statistics nobody reads."""
    none = Moments(*[np.zeros((len(lengths), 1))] * 4)
    return Index(
        np.array(files), np.arange(len(lengths)), np.array(lengths),
        np.array(labelled, bool), np.array(success, bool), np.array([b"go"] * len(lengths)),
        np.zeros((len(lengths), 0), bool), np.zeros((len(lengths), 8, 1)), none, none,
    )  # fmt: skip


def test_filters_keep_what_they_say():
    table = index([5, 6, 7, 0], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1])
    counts = table.length

    def kept(success_only, skip_unlabeled):
        return splits.kept_episodes(table, counts, success_only, skip_unlabeled, "x").tolist()

    assert kept(True, True) == [0]
    assert kept(False, True) == [0, 2]
    assert kept(True, False) == [0, 1]
    assert kept(False, False) == [0, 1, 2]


@pytest.mark.bad_input
def test_no_episode_left_says_why():
    table = index([5, 6, 7], [1, 1, 0], [0, 0, 0], [0, 0, 0])
    with pytest.raises(DataError) as error:
        splits.kept_episodes(table, table.length, True, True, "/data/x")
    for part in ("none of the 3 episodes of /data/x", "3: without success", "1: no language"):
        assert part in str(error.value)


@given(st.integers(2, 200), st.floats(0.01, 0.9))
def test_validation_split_is_whole_disjoint_and_stable(count, fraction):
    table = index([9] * count, [1] * count, [1] * count, np.arange(count) // 5)
    kept = np.arange(count)
    numbers, per_file = kept % 5, np.bincount(table.file)
    train, valid = splits.split_validation(table, kept, fraction, "x", per_file, numbers)
    assert sorted([*train, *valid]) == kept.tolist()
    assert len(train) >= 1 and len(valid) == min(max(1, round(fraction * count)), count - 1)
    again = splits.split_validation(table, kept, fraction, "x", per_file, numbers)
    assert np.array_equal(again[0], train) and np.array_equal(again[1], valid)


@given(st.sets(st.integers(0, 99), min_size=2), st.sets(st.integers(0, 99), min_size=2))
def test_an_episode_stays_on_its_side_under_other_filters_and_damages(one, other):
    """But for the one that is taken where a side would be empty."""
    per_file, sides = np.full(20, 5), []
    for present in (sorted(one), sorted(other)):
        rows = np.array(present)
        table = index([9] * len(rows), [1] * len(rows), [1] * len(rows), rows // 5)
        split = splits.split_validation(table, np.arange(len(rows)), 0.3, "x", per_file, rows % 5)
        sides.append([set(rows[part]) for part in split])
    moved = (sides[0][0] & sides[1][1]) | (sides[0][1] & sides[1][0])
    assert len(moved) <= sum(len(side) == 1 for run in sides for side in run)


@pytest.mark.bad_input
def test_validation_needs_two_episodes():
    table = index([9], [1], [1], [0])
    with pytest.raises(DataError, match="one each"):
        splits.split_validation(table, np.array([0]), 0.1, "x", [1], np.array([0]))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 2**31))
def test_merged_moments_are_those_of_all_steps(lengths, seed):
    random = np.random.RandomState(seed)
    parts = [random.normal(size=(length, 3)) * 5 + 2 for length in lengths]
    moments = Moments(
        np.stack([part.mean(0) for part in parts]),
        np.stack([((part - part.mean(0)) ** 2).sum(0) for part in parts]),
        np.stack([part.min(0) for part in parts]),
        np.stack([part.max(0) for part in parts]),
    )
    rows = np.arange(0, len(lengths), 2)
    everything = np.concatenate([parts[row] for row in rows])
    merged = moments.merged(np.array(lengths), rows)
    assert merged["n"] == len(everything)
    assert np.allclose(merged["mean"][0], everything.mean(0))
    assert np.allclose(merged["sqdiff"][0] / merged["n"], everything.var(0))
    assert np.array_equal(merged["min"][0], everything.min(0))
    assert np.array_equal(merged["max"][0], everything.max(0))
