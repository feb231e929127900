"""What an Evaluator leaves in the run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from robomimic_ddp.commands.evaluate import checkpoints
from robomimic_ddp.errors import CheckpointError
from tests.evaluate.test_pieces import write


@pytest.mark.bad_input
@pytest.mark.parametrize("fault", ["replaced", "damaged", "full disk", "interrupted"])
def test_a_checkpoint_that_cannot_be_read_leaves_no_copy(fault, tmp_path, monkeypatch):
    """Large ones would fill the disk until the evaluation ends."""
    path, folder = write(tmp_path / "last.pth"), tmp_path / "copies"
    folder.mkdir()
    copyfile = shutil.copyfile

    def copy(source: Path, target: Path) -> Path:
        copyfile(source, target)
        if fault == "replaced":
            write(source, 8)
        elif fault == "damaged":
            target.write_bytes(b"PK\3\4")
        elif fault == "full disk":
            raise OSError("No space left on device")
        else:
            raise KeyboardInterrupt
        return target

    monkeypatch.setattr(checkpoints.shutil, "copyfile", copy)
    with pytest.raises(KeyboardInterrupt if fault == "interrupted" else CheckpointError):
        checkpoints.copy_and_read(tmp_path, path, folder)
    assert not [*folder.iterdir()]
    monkeypatch.undo()
    copied, checkpoint = checkpoints.copy_and_read(tmp_path, path, folder)
    assert copied.is_file() and checkpoint.epoch in (7, 8)
