"""ddp.skip_corrupt=true: the index leaves out damaged episodes and counts them, on all ranks."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index import build, records
from robomimic_ddp.data.rlds.index import cache as index_cache
from robomimic_ddp.data.rlds.index.records import record_offsets
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import LENGTHS
from tests.rlds.damages import cut, files_of, flip
from tests.rlds.quick import source_and_fields

pytestmark = pytest.mark.bad_input


@pytest.fixture
def damaged(copy):
    """A copy with a flipped bit in file 1's first record, file 3 cut off, file 5's length broken;
    and the rows of the episodes that are lost by that.
    """
    files = files_of(copy)
    assert [len(record_offsets(file)) for file in files] == [2] * 7
    flip(1)(copy)
    cut(copy)
    data = bytearray(files[5].read_bytes())
    data[0] ^= 0x40
    files[5].write_bytes(data)
    return copy, files, {2, 7, 10, 11}


def test_a_record_keeps_its_number_in_a_file_with_lost_ones(damaged, tmp_path, capsys):
    folder, files, _ = damaged
    source, fields = source_and_fields(folder)
    index = index_cache.load_index(source, fields, str(tmp_path), skip_corrupt=True)
    said = capsys.readouterr().err
    assert "ddp.skip_corrupt=true: 4 of 14 episodes of made_up/1.0.0 are left out" in said
    assert f"1 of {files[1]}" in said and f"2 of {files[5]}" in said
    numbers = build.numbers_in_files(index, source)
    assert [numbers[index.file == file].tolist() for file in (0, 1, 3)] == [[0, 1], [1], [0]]
    first_files = index.select(np.flatnonzero(index.file < 5))
    assert build.missing_episodes(first_files, source).tolist() == [0, 1, 0, 1, 0, 2, 2]


def test_ten_files_with_lost_episodes_are_named():
    source = SimpleNamespace(
        name="made_up", files=[f"file {n}" for n in range(12)], episodes_per_file=[2] * 12
    )
    line = build.left_out(SimpleNamespace(file=np.array([0])), source)
    assert "23 of 24 episodes of made_up are left out" in line
    assert line.endswith(
        "1 of file 0, "
        + ", ".join(f"2 of file {n}" for n in range(1, 10))
        + ", and some of 2 more files"
    )


NO_DISK, NO_MEMORY = OSError(errno.EIO, "Input/output error"), MemoryError("no memory")


@pytest.mark.parametrize(
    "opens, fault, words",
    [
        (1, NO_DISK, "Copy that file again"),  # for the fingerprint
        (2, NO_DISK, "Copy that file again"),  # for the offsets
        (3, NO_DISK, "not left out, even with ddp.skip_corrupt=true. Start again once"),
        (3, NO_MEMORY, "reading failed while building the index of "),
    ],
)
def test_a_file_that_cannot_be_read_for_a_moment_loses_no_episode(
    copy, tmp_path, monkeypatch, opens, fault, words
):
    """The index without them would be kept."""
    file, real = files_of(copy)[2], records.files.opened
    left = [False] * (opens - 1) + [True]

    def opened(path):
        if path == file and left and left.pop(0):
            raise fault
        return real(path)

    monkeypatch.setattr(records.files, "opened", opened)
    _, fields = source_and_fields(copy)
    with pytest.raises(DataError) as caught:
        index_cache.load_index(Source(copy, True), fields, str(tmp_path), True)
    assert words in str(caught.value) and f"{file} cannot be read: {fault}" in str(caught.value)
    index = index_cache.load_index(Source(copy, True), fields, str(tmp_path), True)
    assert len(index.length) == len(LENGTHS)


def test_a_repaired_file_is_read_once_the_named_index_is_removed(
    damaged, stored, make_config, tmp_path, capsys
):
    """Files as long as before have the same fingerprint."""
    folder, files, lost = damaged
    config = make_config(
        data_path=str(folder.parent.parent), data_cache_dir=str(tmp_path / "cache"), batch_size=1
    )
    before, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, skip_corrupt=True)
    shutil.copyfile(stored.folder / files[1].name, files[1])
    named = capsys.readouterr().err.partition("Remove ")[2].partition(" once they are repaired")[0]
    Path(named).unlink()
    after, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, skip_corrupt=True)
    assert "3 of 14 episodes" in capsys.readouterr().err
    assert len(after.index.length) == len(before.index.length) + 1


def test_nothing_is_said_of_a_whole_data_set(make_config, tmp_path, capsys):
    config = make_config(data_cache_dir=str(tmp_path / "cache"))
    one, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, skip_corrupt=True)
    assert "skip_corrupt" not in capsys.readouterr().err
    other, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    assert one.table.digest() == other.table.digest()


def indexed_on_rank(folder, cache):
    """On a rank: the rows that it got."""
    index = index_cache.load_index(*source_and_fields(Path(folder)), cache, skip_corrupt=True)
    return index.file.tolist(), index.offset.tolist()


def test_all_ranks_leave_out_the_same(ranks, damaged, tmp_path):
    folder, _, lost = damaged
    one, two = ranks.run(indexed_on_rank, str(folder), str(tmp_path / "cache"))
    assert one == two and len(one[0]) == len(LENGTHS) - len(lost)
