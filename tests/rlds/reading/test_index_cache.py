"""Keys of indices, what they are made of, and where they are found again."""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from robomimic_ddp.data import array_cache
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index import build, statistics
from robomimic_ddp.data.rlds.index import cache as index_cache
from robomimic_ddp.data.rlds.index.records import stored_checksums
from robomimic_ddp.data.rlds.schema import spec
from robomimic_ddp.data.rlds.schema.fields import Fields, Part
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import ACTIONS, CAMERAS, LENGTHS, STATES
from tests.rlds.quick import index_of, same, source_and_fields


def test_the_key_of_an_index_never_changes():
    """Else a new version would read all data again. With INDEX_VERSION it may."""
    fields = Fields(
        images={},
        low_dim={"joints": Part("state", 1, 4)},
        low_dim_shapes={"joints": (3,)},
        actions={"move": Part("action", 0, 6, ("euler_xyz", "rot_6d"))},
        language="text",
        success=None,
        filters=(),
    )
    keys = [index_cache.fingerprint({"dataset": "a"}, fields, skip) for skip in (False, True)]
    assert keys == ["a96bc7e2a1f3c0a04f783be9", "073d5a97383ecab97e700a7d"]
    judged = replace(fields, filters=(spec.Filter("text", "equals", "a"),))
    assert index_cache.fingerprint({"dataset": "a"}, judged) == "b819ee3c8c5e2e9063bca7c1"


def test_checksums_are_those_that_the_files_store(stored):
    source, _ = source_and_fields(stored.folder)
    digests = [
        hashlib.sha256(b"".join(checksum for _, checksum in stored_checksums(path))).digest()
        for path in source.files
    ]
    assert source.checksums == hashlib.sha256(b"".join(digests)).hexdigest()
    assert len(set(digests)) == len(source.files)


@pytest.fixture
def files_read(monkeypatch):
    """The numbers of the files that are read for an index."""
    numbers, real = [], index_cache.make_index

    def make_index(source, fields, files, *settings):
        numbers.extend(files)
        return real(source, fields, files, *settings)

    monkeypatch.setattr(index_cache, "make_index", make_index)
    return numbers


def test_one_rank_does_not_read_again_what_it_has_read_before_a_stop(
    stored, tmp_path, files_read, monkeypatch, caplog
):
    source, fields = source_and_fields(stored.folder)
    whole, cache = index_of(source, fields), str(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(index_cache, "_PART_BYTES", 1)
        store = index_cache.array_cache.store

        def store_two(path, *content):
            if path.name == "2.npz":
                raise KeyboardInterrupt
            return store(path, *content)

        patched.setattr(index_cache.array_cache, "store", store_two)
        index_cache.load_index(source, fields, cache)
    assert files_read == [0, 1, 2]
    files_read.clear()
    caplog.set_level(logging.INFO)
    assert same(index_cache.load_index(source, fields, cache), whole)
    assert files_read == [*range(2, len(source.files))]
    assert f"reading {source.folder} for its index ({len(source.files)} files)" in caplog.text


def test_parts_stay_until_the_index_is_stored(stored, tmp_path, files_read, monkeypatch, caplog):
    source, fields = source_and_fields(stored.folder)
    atomic_open = array_cache.atomic_open

    def open_parts(path, mode):
        if path.parent == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return atomic_open(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(index_cache, "_PART_BYTES", 1)
        patched.setattr(array_cache, "atomic_open", open_parts)
        index = index_cache.load_index(source, fields, str(tmp_path))
    assert len(files_read) == len(source.files) and "the index " in caplog.text
    assert same(index_cache.load_index(source, fields, str(tmp_path)), index)
    assert len(files_read) == len(source.files)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_a_folder_that_cannot_be_written_is_tried_once_for_parts(
    stored, tmp_path, monkeypatch, caplog
):
    source, fields = source_and_fields(stored.folder)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(index_cache, "_PART_BYTES", 1)
    index_cache.load_index(source, fields, str(tmp_path / "file"))
    warnings = [text for text in caplog.messages if "cannot be stored" in text]
    assert len(source.files) > 2 == len(warnings)
    assert "the part of the index " in warnings[0] and "the index " in warnings[1]


def bytes_gathered(folder, cache):
    """On a rank: the bytes of the longest message that all ranks get of each; and the index."""
    with mock.patch.object(group, "_gather_bytes", wraps=group._gather_bytes) as gather:
        index = index_cache.load_index(*source_and_fields(Path(folder)), cache)
    return max(size for _, size, _ in (call.args for call in gather.call_args_list)), index


def test_ranks_get_a_cached_index_once(ranks, stored, tmp_path):
    """It may take gigabytes: a copy of each rank's size on each rank ends the job."""
    whole = index_of(*source_and_fields(stored.folder))
    (first, _), _ = ranks.run(bytes_gathered, str(stored.folder), str(tmp_path))
    cached = ranks.run(bytes_gathered, str(stored.folder), str(tmp_path))
    assert all(same(index, whole) for _, index in cached)
    assert [size for size, _ in cached] == [group._HEAD] * 2 and first > group._HEAD


def test_offsets_of_several_files_are_read_at_once(stored, monkeypatch):
    """Each takes a read per record, at the latency of a network's file system."""
    source, fields = source_and_fields(stored.folder)
    both, offsets_of = threading.Barrier(2, timeout=20), build.offsets_of

    def offsets_once_both_are_read(*file):
        both.wait()
        return offsets_of(*file)

    monkeypatch.setattr(build, "offsets_of", offsets_once_both_are_read)
    assert index_of(source, fields, [0, 1]).file.tolist() == [0, 0, 1, 1]


def test_files_without_an_episode_add_nothing_to_an_index(stored):
    source, fields = source_and_fields(stored.folder)
    index, empty = index_of(source, fields), build._as_index([], fields)
    assert same(statistics.merged([empty, index, empty]), index)
    columns, others = index_cache.arrays_of(empty), index_cache.arrays_of(index)
    assert {len(column) for column in columns.values()} == {0}
    kinds = {name: column.dtype.kind for name, column in columns.items()}
    assert kinds == {name: column.dtype.kind for name, column in others.items()}
    assert index.passed.dtype == bool and index.passed.shape == (len(LENGTHS), 0)


def test_a_prepared_set_counts_as_its_source_with_what_was_left_out(stored):
    source, fields = source_and_fields(stored.folder)
    plain = source.episodes_of_source
    assert plain == [*source.episodes_per_file]
    source, _ = source_and_fields(stored.folder)
    vars(source)["prepared"] = {"left_out": {"train": {"1": [0, 2]}}}
    assert source.left_out == {1: [0, 2]}
    assert source.episodes_of_source == [plain[0], plain[1] + 2, *plain[2:]]
    numbers = build.numbers_in_files(index_of(source, fields), source)
    first = plain[0]
    assert numbers[first] == 1 and numbers[:first].tolist() == list(range(first))


@pytest.mark.parametrize("place", ["observation.dropped_camera", "observation/dropped_camera"])
def test_a_camera_that_was_dropped_is_an_error_for_who_asks_for_it(
    place, stored, make_config, tmp_path
):
    """Also where the schema demands it."""
    source, _ = source_and_fields(stored.folder)
    text = (spec.FOLDER / "droid.yaml").read_text()
    wrist = "observation.wrist_image_left, optional: true"
    (tmp_path / "strict.yaml").write_text(text.replace(wrist, place))
    config = make_config(rlds_schema=str(tmp_path / "strict.yaml"))
    vars(source)["prepared"] = {"left_out": {}, "dropped": ["observation/dropped_camera"]}
    kept = [*CAMERAS[:2], *STATES[:2]]
    schema = config.train.rlds_schema
    fields = host_datasets._fields_of_run(config, source, schema, kept)
    assert [*fields.images] == [*CAMERAS[:2]] and [*fields.actions] == [*ACTIONS]
    with pytest.raises(DataError, match="was prepared without the camera"):
        host_datasets._fields_of_run(config, source, schema, [CAMERAS[2]])
