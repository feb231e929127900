"""Normalisation and the choice of episodes, each against an independent calculation."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.index import normalization, splits, statistics
from robomimic_ddp.data.rlds.index.statistics import Index, Moments
from robomimic_ddp.errors import DataError


def raw_statistics(method):
    """Statistics of random actions, one dimension constant; and the action config."""
    values = np.random.RandomState(0).normal(size=(50, 7)) * 3
    values *= [1, 0.1, 0, 1e-3, 1e-6, 1e-7, 1]
    values[:, 2] = 0.25
    mean = values.mean(0, keepdims=True)
    stats = {
        "n": 50,
        "mean": mean,
        "sqdiff": ((values - mean) ** 2).sum(0, keepdims=True),
        "min": values.min(0, keepdims=True),
        "max": values.max(0, keepdims=True),
    }
    stats["min"][0, 6], stats["max"][0, 6], stats["sqdiff"][0, 6] = 0, 1e-4, 50 * 1e-12
    return {"a": stats}, {"a": {"normalization": method}}


@pytest.mark.parametrize("method", [None, "min_max", "gaussian"])
def test_scale_and_offset_are_the_hosts_to_the_bit(method):
    host = pytest.importorskip("robomimic.utils.dataset")
    stats, config = raw_statistics(method)
    ours = normalization.action_normalization(stats, config)["a"]
    theirs = host.action_stats_to_normalization_stats(stats, config)["a"]
    for name in ("scale", "offset"):
        assert ours[name].dtype == theirs[name].dtype == np.float32
        assert np.array_equal(ours[name], theirs[name])


def test_states_are_divided_by_the_hosts_deviation():
    values = np.random.RandomState(0).normal(size=(40, 5)) + 3
    sqdiff = ((values - values.mean(0)) ** 2).sum(0)[None]
    merged = {"n": 40, "mean": values.mean(0)[None], "sqdiff": sqdiff}
    stats = normalization.state_normalization(merged, {"a": (2,), "b": (3, 1)})
    for key, part, shape in (("a", values[:, :2], (1, 2)), ("b", values[:, 2:], (1, 3, 1))):
        for name, expected in (("offset", part.mean(0)), ("scale", part.std(0) + 1e-3)):
            assert stats[key][name].shape == shape and stats[key][name].dtype == np.float32
            assert np.allclose(stats[key][name].ravel(), expected, rtol=1e-6)


def test_actions_are_clipped_where_only_rounding_exceeds_one():
    entries = {
        key: {"scale": np.full((1, size), float(size)), "offset": np.zeros((1, size))}
        for key, size in (("a", 2), ("b", 1), ("c", 1))
    }
    methods = {"a": "min_max", "b": "gaussian", "c": None}
    config = {key: {"normalization": method} for key, method in methods.items()}
    scale, offset, limit = normalization.vectors(entries, config)
    assert scale.tolist() == [2, 2, 1, 1] and offset.tolist() == [0] * 4
    assert limit.tolist() == [1, 1, np.inf, np.inf] and limit.dtype == np.float32


def index(lengths, labelled, success, files):
    """An index whose statistics nobody reads."""
    none = Moments(*[np.zeros((len(lengths), 1))] * 4)
    return Index(
        np.array(files), np.arange(len(lengths)), np.array(lengths),
        np.array(labelled, bool), np.array(success, bool), np.array([b"go"] * len(lengths)),
        np.zeros((len(lengths), 0), bool), none, none,
    )  # fmt: skip


def test_filters_keep_what_they_say():
    table = index([5, 6, 7, 0], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1])
    counts = table.length

    def kept(success_only, skip_unlabeled):
        rows, _ = splits.select_episodes(table, counts, success_only, skip_unlabeled, "x")
        return rows.tolist()

    assert kept(True, True) == [0]
    assert kept(False, True) == [0, 2]
    assert kept(True, False) == [0, 1]
    assert splits.select_episodes(table, counts, True, False, "x")[1] == (
        "1: without success (success; train.success_only); "
        "1: too short for one window (train.seq_length and its padding)"
    )
    assert kept(False, False) == [0, 1, 2]
    judged = replace(table, passed=np.array([[1, 1], [1, 0], [0, 1], [1, 1]], bool))
    single = np.array([1, 1, 1, 0])  # windows
    rows, _ = splits.select_episodes(judged, single, False, False, "x", ["one", "two"])
    assert rows.tolist() == [0] and rows.dtype == np.int64
    assert splits.select_episodes(table, single, False, False, "x")[0].tolist() == [0, 1, 2]


@pytest.mark.bad_input
def test_no_episode_left_says_why():
    table = index([5, 6, 7], [1, 1, 0], [0, 0, 0], [0, 0, 0])
    with pytest.raises(DataError) as error:
        splits.select_episodes(table, table.length, True, True, "/data/x")
    for part in ("none of the 3 episodes of /data/x", "3: without success", "1: no language"):
        assert part in str(error.value)


def test_the_split_of_an_episode_is_that_of_every_version():
    assert splits.episode_hash(3, 7) == 9518160787230353504


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


def test_moments_of_infinity_and_of_huge_numbers_warn_of_nothing():
    """Such episodes are named, or left out, by their means."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for values in ([[np.inf], [-np.inf]], [[1e200], [-1e200]]):
            mean, sqdiff, low, high = statistics.moments(np.array(values))
            assert not np.isfinite(sqdiff).all() and low < high
            assert low.dtype == mean.dtype == np.float64


def statistics_of(values):
    mean = values.mean(0)
    sums = {"mean": mean, "sqdiff": ((values - mean) ** 2).sum(0)}
    return {"n": len(values), **sums, "min": values.min(0), "max": values.max(0)}


def require_equal(stats, values):
    for name, expected in statistics_of(values).items():
        assert name == "n" or stats[name].shape == (1, values.shape[1])
        assert np.allclose(stats[name], expected, rtol=1e-12), name


def test_statistics_of_episodes_merge_to_those_of_all_their_steps():
    random = np.random.RandomState(0)
    episodes = [random.normal(size=(length, 3)) + 5 for length in (4, 1, 7, 2)]
    lengths = np.array([len(values) for values in episodes])
    parts = [
        Moments(*map(np.stack, zip(*map(statistics.moments, part))))
        for part in (episodes[:2], episodes[2:])
    ]
    merged = statistics.joined(parts).merged(lengths)
    require_equal(merged, np.concatenate(episodes))
    assert merged["n"] == 14
    mean, sqdiff, low, high = statistics.moments(np.zeros((0, 2), np.float32))
    assert [*mean, *sqdiff, *low, *high] == [0, 0, 0, 0, *[np.inf] * 2, *[-np.inf] * 2]
    assert statistics.moments(np.array([[2.0**24], [1]], np.float32))[0] == 2.0**23 + 0.5


def test_indices_of_files_are_joined_in_file_order():
    parts = [
        index([5, 6], [1, 1], [1, 0], [2, 0]),
        index([], [], [], []),
        index([7], [0], [1], [1]),
    ]
    parts[0] = replace(parts[0], offset=np.array([9, 8]))
    parts[0] = statistics.merged([parts[0], replace(parts[0], offset=np.array([3, 2]))])
    table = statistics.merged(parts)
    assert table.file.tolist() == [0, 0, 1, 2, 2] and table.offset.tolist() == [2, 8, 0, 3, 9]
    assert table.length.tolist() == [6, 6, 7, 5, 5] and table.actions.mean.shape == (5, 1)
    assert len(statistics.merged([parts[1], parts[1]]).length) == 0


def test_instructions_are_the_distinct_ones_of_the_rows():
    table = replace(index([1] * 3, [1] * 3, [1] * 3, [0] * 3), texts=np.array(
        [b"X\0\x1eback", b"stop", b"go\x1ea\xff"], object))  # fmt: skip
    assert table.instructions(np.array([0, 2])) == ["X", "a\ufffd", "back", "go"]
