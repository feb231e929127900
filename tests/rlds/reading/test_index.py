"""The index: offsets, filters, statistics against numpy, and the cache that several jobs share."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.data import array_cache
from robomimic_ddp.data.rlds import reading_progress
from robomimic_ddp.data.rlds.index import build, statistics
from robomimic_ddp.data.rlds.index import cache as index_cache
from robomimic_ddp.data.rlds.index.records import record_offsets
from robomimic_ddp.data.rlds.index.source import find_dataset
from robomimic_ddp.data.rlds.schema.fields import find_fields
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import (
    ACTIONS,
    CAMERAS,
    FAILED,
    KEPT,
    LENGTHS,
    STATES,
    WORDLESS,
)
from tests.rlds.damages import files_of, rewrite
from tests.rlds.quick import index_of, same, source_and_fields
from tests.rlds.reference import feature, raw_action


def test_index_says_what_the_files_hold(stored):
    source, fields = source_and_fields(stored.folder)
    index = index_of(source, fields)
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


def test_a_renamed_dataset_is_read(stored, tmp_path):
    """As droid_100 is, whose files keep the name that it was prepared under (docs/droid.md)."""
    shutil.copytree(stored.folder, tmp_path / "droid" / "1.0.0")
    folder = find_dataset(str(tmp_path), "droid")
    source, fields = source_and_fields(folder)
    assert source.name == "droid/1.0.0" and not source.files[0].name.startswith("droid")
    assert index_of(source, fields).length.tolist() == list(LENGTHS)


class Terminal(io.StringIO):
    """What looks like one."""

    def isatty(self) -> bool:
        return True


def test_reading_shows_how_far_it_is(stored, tmp_path, monkeypatch):
    source, fields = source_and_fields(stored.folder)
    for number, (stream, shown) in enumerate(((Terminal(), True), (io.StringIO(), False))):
        monkeypatch.setattr("sys.stderr", stream)
        index_cache.load_index(source, fields, str(tmp_path / str(number)))
        assert ("index of made_up/1.0.0: 100%" in stream.getvalue()) == shown
        assert ("379k/379k" in stream.getvalue()) == shown
    monkeypatch.setattr(reading_progress, "LINE_SECONDS", 0)
    index_cache.load_index(source, fields, str(tmp_path / "lines"))
    assert "index of made_up/1.0.0: 100%" in stream.getvalue()


def test_what_a_stopped_job_has_read_is_not_read_again(stored, tmp_path, monkeypatch, ranks):
    """What has a damaged part is."""
    folder = shutil.copytree(stored.folder, tmp_path / "made_up" / "1.0.0")
    source, fields = source_and_fields(folder)
    whole, read, real = index_of(source, fields), [], index_cache.make_index

    def stopping(source, fields, files, *more):
        if len(read) == 4:
            raise KeyboardInterrupt
        read.append(files)
        return real(source, fields, files, *more)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(index_cache, "_PART_BYTES", 1)
        patched.setattr(index_cache, "make_index", stopping)
        index_cache.load_index(source, fields, str(tmp_path / "cache"))
    before = set(sum(read, []))
    damaged = max(before)
    (part,) = (tmp_path / "cache").glob(f"*/{damaged}.npz")
    part.write_bytes(part.read_bytes()[:1000])
    found = ranks.run(index_of_ranks, str(folder), str(tmp_path / "cache"))
    files = sorted(sum((files for files, _ in found), []))
    assert files == sorted(set(range(len(source.files))) - before | {damaged})
    assert all(same(index, whole) for _, index in found)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"]


def test_statistics_are_numpys(load, stored):
    train, _ = load(states=STATES)
    steps = [step for number in KEPT for step in stored.episodes[number]["steps"]]
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
    monkeypatch.setattr(
        index_cache, "make_index", lambda *a, **more: made.append(1) or real(*a, **more)
    )
    one = index_cache.load_index(source, fields, str(tmp_path))
    two = index_cache.load_index(source, fields, str(tmp_path))
    assert len(made) == 1
    assert np.array_equal(one.offset, two.offset)
    assert np.array_equal(one.actions.sqdiff, two.actions.sqdiff)
    other = find_fields(source.features, "x", CAMERAS, CAMERAS, ACTIONS[:1], load_schema())
    assert index_cache.fingerprint(source.identity, fields) != index_cache.fingerprint(
        source.identity, other
    )
    (cached,) = tmp_path.glob("*.npz")
    (tmp_path / "plain").touch()  # others who share the folder may read it as any other file
    assert cached.stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").unlink()
    arrays = dict(np.load(cached))
    np.savez(cached, **{**arrays, "episode.length": arrays["episode.length"][1:]})
    index_cache.load_index(source, fields, str(tmp_path))
    cached.write_bytes(b"torn")
    index_cache.load_index(source, fields, str(tmp_path))
    assert len(made) == 3 and len(list(tmp_path.iterdir())) == 1


def test_an_episode_changed_in_place_is_read_again(copy, tmp_path):
    """In the middle of a file, whose size and last record stay; as does data that is prepared again
    with files as long.
    """

    def other_state(features):
        features["steps/observation/cartesian_position"].float_list.value[0] += 1

    rewrite(2, 0, lambda features: None)(copy)  # as TensorFlow writes it
    found = []
    for change in (lambda folder: None, rewrite(2, 0, other_state)):
        change(copy)
        source, fields = source_and_fields(copy)
        index = index_cache.load_index(source, fields, str(tmp_path / "cache"))
        found.append((source.sizes, index.states.mean))
    (sizes, before), (later, after) = found
    assert sizes == later and np.flatnonzero((before != after).any(1)).tolist() == [4]


def test_space_for_a_copy_to_come_is_no_record(copy):
    """As rsync --preallocate leaves it."""
    file = files_of(copy)[3]
    file.write_bytes(file.read_bytes() + bytes(1 << 16))
    assert len(record_offsets(file)) == 2


def test_a_folder_that_cannot_be_written_only_warns(stored, tmp_path, caplog):
    source, fields = source_and_fields(stored.folder)
    (tmp_path / "taken").write_text("a file, not a folder")
    index = index_cache.load_index(source, fields, str(tmp_path / "taken" / "cache"))
    assert len(index.length) == len(LENGTHS)
    assert "train.data_cache_dir" in caplog.text


def store_often(path):
    """As a separate job: stores an index under the shared name, again and again."""
    array_cache.logger.warning = lambda *_: sys.exit(1)  # what could not be kept
    for _ in range(15):
        array_cache.store(Path(path), "index", {"rows": np.zeros(300_000)})


def test_jobs_that_store_at_once_never_show_a_torn_index(tmp_path):
    path = tmp_path / "shared.npz"
    context = multiprocessing.get_context("forkserver")
    jobs = [context.Process(target=store_often, args=(str(path),)) for _ in range(2)]
    for job in jobs:
        job.start()
    reads = 0
    while any(job.is_alive() for job in jobs):
        if path.exists():
            assert len(array_cache.read(path, "index", dict)["rows"]) == 300_000
            reads += 1
    assert all(job.exitcode == 0 for job in jobs) and reads > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.npz"]


def test_validation_does_not_change_the_normalisation(load):
    whole = load()[0].get_action_normalization_stats()
    for dataset in load(experiment={"validate": True}, validation_fraction=0.3):
        for key, entry in dataset.get_action_normalization_stats().items():
            assert np.array_equal(entry["scale"], whole[key]["scale"])


def test_parts_of_ranks_merge_to_the_bits_of_one(stored):
    """Of 20 ranks most have no file."""
    source, fields = source_and_fields(stored.folder)
    files = range(len(source.files))
    shares = [build.files_of_rank(files, source.sizes, rank, 20) for rank in range(20)]
    assert sorted(sum(shares, [])) == list(range(len(source.files)))
    parts = [index_of(source, fields, share) for share in shares]
    assert same(statistics.merged(parts[::-1]), index_of(source, fields))


def test_progress_counts_each_byte_of_the_files(stored):
    source, fields = source_and_fields(stored.folder)
    sizes: list[int] = []
    index_of(source, fields, add=sizes.append)
    assert len(sizes) == len(LENGTHS) and sum(sizes) == sum(source.sizes)


def test_a_file_in_two_parts_is_not_merged(stored):
    source, fields = source_and_fields(stored.folder)
    parts = [index_of(source, fields, files) for files in ([0, 1], [1, 2])]
    with pytest.raises(AssertionError, match="a file is in two parts of the index"):
        statistics.merged(parts)


def test_ranks_index_about_as_many_bytes():
    sizes = [(n * 37) % 100 + 50 for n in range(500)]
    for world in (1, 7, 64):
        shares = [build.files_of_rank(range(500), sizes, rank, world) for rank in range(world)]
        assert sum(shares, []) == list(range(500))
        given = [sum(sizes[n] for n in share) for share in shares]
        assert max(given) - min(given) <= 2 * max(sizes)
    by_middle = [build.files_of_rank(range(3), [30, 10, 0], rank, 2) for rank in range(2)]
    assert by_middle == [[0], [1, 2]]
    for count, world in ((8, 8), (16, 8), (15, 8), (4, 3)):  # files of one size
        shares = [
            build.files_of_rank(range(count), [7] * count, rank, world) for rank in range(world)
        ]
        given = [len(share) for share in shares]
        assert max(given) - min(given) <= 1


def index_of_ranks(folder, cache):
    """On a rank: the files that it has read itself, and a digest of what it got."""
    read = []
    real = index_cache.make_index
    index_cache.make_index = lambda s, f, files, *a, **more: (
        read.extend(files) or real(s, f, files, *a, **more)
    )
    try:
        source, fields = source_and_fields(Path(folder))
        index = index_cache.load_index(source, fields, cache)
    finally:
        index_cache.make_index = real
    return read, index


def test_each_rank_reads_its_share_and_the_second_time_none_does(ranks, stored, tmp_path):
    whole = index_of(*source_and_fields(stored.folder))
    found = ranks.run(index_of_ranks, str(stored.folder), str(tmp_path))
    assert all(same(index, whole) for _, index in found)
    files = [read for read, _ in found]
    assert all(files) and sorted(sum(files, [])) == list(range(len(set(whole.file.tolist()))))
    again = ranks.run(index_of_ranks, str(stored.folder), str(tmp_path))
    assert [read for read, _ in again] == [[], []] and all(same(i, whole) for _, i in again)


def test_parts_of_jobs_that_cut_the_files_differently_add_no_episode_twice(ranks, stored, tmp_path):
    """Two jobs with other numbers of ranks have begun the same index in one cache."""
    source, fields = source_and_fields(stored.folder)
    name = f"made_up-{index_cache.fingerprint(source.identity, fields)}"
    for files in ([0], [1, 2], [2, 3]):
        part = index_cache.arrays_of(index_of(source, fields, files))
        path = tmp_path / f"{name}.parts" / f"{files[0]}.npz"
        array_cache.store(path, "part of the index", {**part, "files": np.asarray(files)})
    results = ranks.run(index_of_ranks, str(stored.folder), str(tmp_path))
    assert sorted(sum((files for files, _ in results), [])) == list(range(3, len(source.files)))
    assert all(same(index, index_of(source, fields)) for _, index in results)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.npz"]


@pytest.mark.bad_input
@pytest.mark.parametrize("cache", [None, "~nobody-of-this-name/x"])
def test_a_cache_in_an_unknown_home_is_one_error(cache, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", str)  # HOME is not set, and the user has no entry
    with pytest.raises(DataError, match="home folder is unknown.*train.data_cache_dir"):
        array_cache.cache_folder(cache)
