"""The state file: whole or refused by name, the previous one used, never code in it.

Saves that fail: tests/ranks/resuming/test_disk_faults.py.
"""

from __future__ import annotations

import errno
import os
import pickle
from unittest import mock

import numpy as np
import pytest
import torch

from robomimic_ddp.checkpoint import (
    BEST,
    PREVIOUS,
    STATE,
    read,
    state_file,
    write,
)
from robomimic_ddp.checkpoint.state_file import PARTS
from robomimic_ddp.errors import CheckpointError
from tests.hostile import PROGRAM


def state(epoch, size=2000):
    generator = torch.Generator().manual_seed(epoch)
    return {
        **dict.fromkeys(PARTS),
        "epoch": epoch,
        "weights": torch.randn(size, generator=generator),
        "nest": [{"empty": torch.empty(0), 3: None, "half": torch.ones(3, dtype=torch.bfloat16)}],
        "best": {"walk": -float("inf")},
    }


def same(one, two):
    return state_file.digest(one) == state_file.digest(two)


def test_newest_previous_and_best(tmp_path):
    for epoch in range(1, 5):
        write(tmp_path, state(epoch), best=epoch == 2)
    for name, epoch in ((STATE, 4), (PREVIOUS, 3), (BEST, 2)):
        assert same(state_file.read_file(tmp_path / name), state(epoch))
    assert sorted(os.listdir(tmp_path)) == sorted([STATE, PREVIOUS, BEST])
    found, notes = read(tmp_path)
    assert same(found, state(4)) and notes == []


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nothing(path):
    path.write_bytes(b"")


def one_bit(path):
    """In the middle of the weights."""
    data = bytearray(path.read_bytes())
    weights = state(2)["weights"].numpy().tobytes()
    data[data.index(weights) + 4000] ^= 1
    path.write_bytes(data)


def code(path):
    path.write_bytes(pickle.dumps(PROGRAM))


def code_of_torch(path):
    torch.save({"format": 1, "digest": "", "state": PROGRAM}, path)


def absent(path):
    path.unlink()


@pytest.mark.parametrize(
    "damage", [half, nothing, one_bit, code, code_of_torch, absent], ids=lambda f: f.__name__
)
def test_a_damaged_newest_file_is_named_and_the_previous_one_used(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, state(1), best=False)
    write(tmp_path, state(2), best=False)
    damage(tmp_path / STATE)
    found, notes = read(tmp_path)
    assert same(found, state(1))
    why = "does not exist" if damage is absent else "is damaged"
    assert f"{tmp_path / STATE} {why}" in notes[0]
    assert f"using {tmp_path / PREVIOUS} of epoch 1" in notes[1]
    assert not (tmp_path / "executed").exists()
    write(tmp_path, state(3), best=False)  # the damaged one must not become the previous one
    assert same(state_file.read_file(tmp_path / PREVIOUS), state(1))
    half(tmp_path / STATE)
    assert same(read(tmp_path)[0], state(1))


@pytest.mark.bad_input
@pytest.mark.parametrize("trouble", ["a link to a disk that is not mounted", "a reading error"])
def test_a_newest_file_that_may_be_complete_is_not_passed_over(trouble, tmp_path, monkeypatch):
    write(tmp_path, state(1), best=False)
    write(tmp_path, state(2), best=False)
    if trouble == "a reading error":
        stale = OSError(errno.ESTALE, "Stale file handle")
        monkeypatch.setattr(torch, "load", mock.Mock(side_effect=stale))
        reason = "Stale file handle"
    else:
        (tmp_path / STATE).rename(tmp_path / "elsewhere.pth")
        (tmp_path / STATE).symlink_to("missing/elsewhere.pth")
        reason = f"No such file or directory: '{tmp_path}/missing/elsewhere.pth'"
    with pytest.raises(CheckpointError) as refused:
        read(tmp_path)
    text = str(refused.value)
    assert text.startswith(f"{tmp_path / STATE} cannot be read (") and reason in text
    assert text.endswith("then resume again; move it away to resume from an older one.")
    assert not (tmp_path / "ddp_state_damaged.pth").exists()
    assert os.path.lexists(tmp_path / STATE)


def test_every_byte_of_the_archive_matters_or_changes_nothing(tmp_path):
    write(tmp_path, state(1, size=8), best=False)
    path = tmp_path / STATE
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    refused = 0
    for position in draw.choice(len(whole), 60, replace=False):
        data = bytearray(whole)
        data[position] ^= 0xFF
        path.write_bytes(data)
        try:
            assert same(state_file.read_file(path), state(1, size=8))
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 4


def test_nothing_whole_is_one_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="neither ddp_state.pth nor"):
        read(tmp_path)
    write(tmp_path, state(1), best=False)
    half(tmp_path / STATE)
    with pytest.raises(CheckpointError, match="damaged"):
        read(tmp_path)


def test_another_format_is_refused_and_stays_where_it_is(tmp_path):
    write(tmp_path, state(1), best=False)
    write(tmp_path, state(2), best=False)
    torch.save({"format": 99, "digest": "", "state": {}}, tmp_path / STATE)
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(CheckpointError, match="format 99.*Resume with the version"):
        read(tmp_path)
    assert (tmp_path / STATE).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == sorted([STATE, PREVIOUS])


@pytest.mark.parametrize("linked", [True, False], ids=["links", "copies"])
def test_a_symbolic_link_is_replaced_and_what_it_leads_to_kept(linked, tmp_path, monkeypatch):
    if not linked:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=PermissionError))
    elsewhere, directory = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    directory.mkdir()
    write(elsewhere, state(9), best=False)
    for name in (STATE, PREVIOUS, BEST):
        (directory / name).symlink_to(elsewhere / STATE)
    for epoch in range(1, 5):
        write(directory, state(epoch), best=epoch == 2)
    for name, epoch in ((STATE, 4), (PREVIOUS, 3), (BEST, 2)):
        assert same(state_file.read_file(directory / name), state(epoch))
        assert not (directory / name).is_symlink()
    assert same(state_file.read_file(elsewhere / STATE), state(9))
