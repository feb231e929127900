"""The notes in a prepared set: what is read of them, and those that are refused."""

from __future__ import annotations

import json

import pytest

from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.errors import DataError

NOTES = {
    "format": 2,
    "source": {"dataset": "made_up/1.0.0"},
    "size": [12, 20],
    "quality": 95,
    "left_out": {"train": {"0": [0, 1], "5": [0]}, "valid": {"2": [3]}},
}


def read(folder, text):
    (folder / "metadata.json").write_text(text)
    return prepared.read(folder)


def test_notes_are_read_as_they_were_written(tmp_path):
    assert prepared.read(tmp_path) is None and read(tmp_path, '{"other": {}}') is None
    notes = read(tmp_path, json.dumps({"robomimic_ddp_prepared": NOTES}))
    assert notes == NOTES and prepared.damaged(notes) == 4
    line = "prepared from made_up/1.0.0 at 12x20, JPEG quality 95"
    assert prepared.described(notes, (12, 20)) == line
    again = f"{line}; resized again to 12x10 (observation.image_dim)"
    assert prepared.described(notes, (12, 10)) == again


def test_the_fingerprint_never_changes():
    """Sets that were prepared before are known by it."""
    identity = {"dataset": "made_up/1.0.0", "files": [["train-0", 12]]}
    assert prepared.fingerprint(identity) == "3868489d98f9d13c36cbb32c"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "metadata.json cannot be read: .* or prepare the dataset again"),
        ("[]", "metadata.json cannot be read: .* or prepare the dataset again"),
        ('{"robomimic_ddp_prepared": {"format": 1}}', "in format 1, and format 2 is expected"),
        ('{"robomimic_ddp_prepared": {}}', "in format None, and format 2 is expected"),
    ],
)
def test_notes_that_cannot_be_read_are_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)
