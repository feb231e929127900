"""Each mistake and each damage is one clear error that names where and what to do."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from robomimic_ddp.data.rlds.index import records
from robomimic_ddp.data.rlds.index.records import (
    masked_checksum,
    read_record,
    record_offsets,
    rows_of,
)
from robomimic_ddp.data.rlds.index.source import Source, find_dataset
from robomimic_ddp.data.rlds.pipeline.images import RecordError, decode
from robomimic_ddp.errors import DataError

pytestmark = pytest.mark.bad_input


def message(call):
    """The text of the error that the call ends with."""
    with pytest.raises(DataError) as caught:
        call()
    return str(caught.value)


def test_newest_version_is_chosen_by_number_not_by_letter(stored, tmp_path):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        shutil.copytree(stored.folder, tmp_path / "made_up" / version)
    (tmp_path / "made_up" / "2.0.0.incompleteABC").mkdir()
    assert find_dataset(str(tmp_path), "made_up").name == "1.10.0"
    assert find_dataset(str(tmp_path), "made_up", "1.2.0").name == "1.2.0"
    assert find_dataset(str(tmp_path / "made_up"), "made_up").name == "1.10.0"
    assert find_dataset(str(tmp_path / "made_up" / "1.9.0"), "made_up").name == "1.9.0"
    with pytest.raises(DataError, match="no dataset 'other' in .*: found made_up"):
        find_dataset(str(tmp_path / "made_up" / "1.9.0"), "other")
    with pytest.raises(
        DataError, match=r"no dataset 'other' in .*: found 1\.10\.0, 1\.2\.0, 1\.9\.0, 2"
    ):
        find_dataset(str(tmp_path / "made_up"), "other")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "other"):
        with pytest.raises(DataError, match=f"no dataset {name!r} in .*: found nothing"):
            find_dataset(str(tmp_path / "empty"), name)


FEATURES = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
EVIL = {"type": "evil.Text", "content": {}}
INNER = json.dumps({"features": {"steps": {"pythonClassName": "evil.Text"}}})


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "evil.Text", "text": {}},
        {"python_class_name": "evil.Text", "text": {}},
        {"pythonClassName": FEATURES, "jsonFeature": {"json": json.dumps({"steps": EVIL})}},
        {"type": FEATURES, "proto_cls": "tensorflow_datasets.FeaturesDict", "content": INNER},
        {"type": FEATURES, "content": {"steps": EVIL}},
        {"type": [FEATURES, "evil.Text"]},
    ],
    ids=[
        "named",
        "named as in protobuf",
        "in text",
        "in text of a message",
        "in older files",
        "in a list",
    ],
)
def test_features_of_another_package_are_not_imported(features, copy, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (copy / "features.json").write_text(json.dumps(features))
    error = message(lambda: Source(copy).builder)
    assert not (tmp_path / "ran").exists()
    assert "names the class evil.Text" in error and error.count("\n") == 0


def test_no_thread_reads_on_after_an_error(copy, monkeypatch):
    """Else a job that has failed would end only when its last record was read."""
    path, readers, is_stopping = Source(copy).files[0], [], threading.Event()
    first, begun = records.read_record(path, 0), []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_stopping.set()
            super().shutdown(wait=wait)

    def make(record):
        readers.append(threading.current_thread())
        begun.append(record)
        if record != first or begun.count(first) > 1:
            assert is_stopping.wait(60)
            time.sleep(0.1)  # who does not wait for the threads finds them alive
        raise RecordError("damaged")

    monkeypatch.setattr(records, "ThreadPoolExecutor", Pool)
    places = [(0, offset) for offset in record_offsets(path)] * 20
    with pytest.raises(DataError, match="episode at byte 0 cannot be used .damaged"):
        list(rows_of([path], places, make, 2, "reading"))
    assert 1 <= len(readers) <= 3, "records that nobody waits for are not read"
    assert not any(thread.is_alive() for thread in readers)
    assert all(thread.name.startswith("rlds-records") for thread in readers)


def test_few_records_are_in_memory_before_they_are_asked_for(copy):
    path, read = Source(copy).files[0], []
    places = [(0, offset) for offset in record_offsets(path)] * 20
    rows = rows_of([path], places, lambda record: read.append(1) or (), 2, "reading")
    next(rows)
    time.sleep(0.1)
    assert len(read) <= 4
    assert len([*rows]) == len(places) - 1


@pytest.mark.parametrize("length", [2**36, 2**64 - 1])
def test_the_length_of_a_record_is_no_reason_to_take_memory(tmp_path, length):
    head = length.to_bytes(8, "little")
    (tmp_path / "a").write_bytes(head + masked_checksum(head) + bytes(100))
    with pytest.raises(RecordError, match=f"cut off: 100 of {length} bytes"):
        read_record(tmp_path / "a", 0)


def picture(kind: str, height: int, width: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGB" if kind == "EPS" else "1", (width, height)).save(written, kind)
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "stored", "words"),
    [
        (picture("PNG", 8, 16), (16, 16), "has 8x16 pixels, not the 16x16"),
        (picture("EPS", 16, 16), (16, 16), "cannot identify image file"),
    ],
)
def test_a_frame_that_differs_from_the_metadata(data, stored, words):
    with pytest.raises(RecordError, match=words):
        decode(data, stored)
