"""The index: offsets, filters, statistics against numpy, and the cache that several jobs share."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.rlds import index_cache, index_reader
from robomimic_ddp.rlds.schema import find_fields
from robomimic_ddp.rlds.source import Source
from tests.rlds.conftest import ACTIONS, CAMERAS, FAILED, LENGTHS, STATES, WORDLESS
from tests.rlds.reference import feature, raw_action


def source_and_fields(folder):
    """What the index of the made-up data set is made from."""
    source = Source(folder)
    return source, find_fields(source.features, "x", CAMERAS + STATES, CAMERAS, ACTIONS)


def test_index_says_what_the_files_hold(stored):
    source, fields = source_and_fields(stored.folder)
    index = index_reader.make_index(source, fields)
    assert index.length.tolist() == list(LENGTHS)
    assert set(np.flatnonzero(~index.labelled)) == WORDLESS
    assert set(np.flatnonzero(~index.success)) == FAILED
    assert len(source.files) >= 5
    for row in range(len(LENGTHS)):
        data = source.files[index.file[row]].read_bytes()
        start = int(index.offset[row])
        size = int.from_bytes(data[start : start + 8], "little")
        record = data[start + 12 : start + 12 + size]
        assert stored.episodes[row]["file_path"].encode() in record


def test_statistics_are_numpys(load, stored):
    train, _ = load(states=STATES)
    kept = [e for e in range(len(LENGTHS)) if e not in WORDLESS | FAILED]
    steps = [step for number in kept for step in stored.episodes[number]["steps"]]
    actions = np.stack([raw_action(step, ACTIONS) for step in steps]).astype(np.float64)
    stats, start = train.get_action_stats(), 0
    for key in ACTIONS:
        stop = start + stats[key]["mean"].shape[1]
        part = actions[:, start:stop]
        assert stats[key]["n"] == len(steps)
        assert np.allclose(stats[key]["mean"][0], part.mean(0), atol=1e-6)
        assert np.allclose(stats[key]["sqdiff"][0] / len(steps), part.var(0), atol=1e-6)
        assert np.allclose(stats[key]["min"][0], part.min(0), atol=1e-6)
        assert np.allclose(stats[key]["max"][0], part.max(0), atol=1e-6)
        start = stop
    observed = train.get_obs_normalization_stats()
    joints = np.stack([feature(step, "observation/joint_position") for step in steps])
    found = observed["robot_state/joint_position"]
    assert found["offset"].shape == found["scale"].shape == (1, 7)
    assert np.allclose(found["offset"][0], joints.mean(0), atol=1e-6)
    assert np.allclose(found["scale"][0], joints.std(0) + 1e-3, atol=1e-6)
    picture = observed[CAMERAS[0]]
    assert np.all(picture["scale"] == 1) and np.all(picture["offset"] == 0)


def test_index_is_kept_and_made_again_when_files_change(stored, tmp_path, monkeypatch):
    source, fields = source_and_fields(stored.folder)
    made = []
    real = index_cache.make_index
    monkeypatch.setattr(index_cache, "make_index", lambda *a: made.append(1) or real(*a))
    one = index_cache.load_index(source, fields, str(tmp_path))
    two = index_cache.load_index(source, fields, str(tmp_path))
    assert len(made) == 1
    assert np.array_equal(one.offset, two.offset)
    assert np.array_equal(one.actions.sqdiff, two.actions.sqdiff)
    other = find_fields(source.features, "x", CAMERAS, CAMERAS, ACTIONS[:1])
    assert index_cache.fingerprint(source, fields) != index_cache.fingerprint(source, other)
    (cached,) = tmp_path.glob("*.npz")
    cached.write_bytes(b"torn")
    index_cache.load_index(source, fields, str(tmp_path))
    assert len(made) == 2 and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_only_warns(stored, tmp_path, caplog):
    source, fields = source_and_fields(stored.folder)
    (tmp_path / "taken").write_text("a file, not a folder")
    index = index_cache.load_index(source, fields, str(tmp_path / "taken" / "cache"))
    assert len(index.length) == len(LENGTHS)
    assert "train.data_cache_dir" in caplog.text


def store_often(path):
    """A job of its own: stores an index under the shared name, again and again."""
    random = np.random.RandomState(0)
    column = random.randint(0, 9, 1000)
    moments = index_cache.Moments(*[random.normal(size=(1000, 10))] * 4)
    index = index_cache.Index(column, column, column, column > 3, column > 3, moments, moments)
    for _ in range(15):
        index_cache._store(index, Path(path))


def test_jobs_that_store_at_once_never_show_a_torn_index(tmp_path):
    path = tmp_path / "shared.npz"
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=store_often, args=(str(path),)) for _ in range(3)]
    for job in jobs:
        job.start()
    reads = 0
    while any(job.is_alive() for job in jobs):
        if path.exists():
            assert len(index_cache._read(path).length) == 1000
            reads += 1
    assert all(job.exitcode == 0 for job in jobs) and reads > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.npz"]


@pytest.mark.parametrize("validate", [True, False])
def test_validation_does_not_change_the_normalisation(load, validate):
    train, valid = load(experiment={"validate": validate}, validation_fraction=0.3)
    whole = load()[0].get_action_normalization_stats()
    for dataset in filter(None, (train, valid)):
        for key, entry in dataset.get_action_normalization_stats().items():
            assert np.array_equal(entry["scale"], whole[key]["scale"])
