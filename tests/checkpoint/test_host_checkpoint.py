"""A host's checkpoint is read into CPU memory, and its weights are let go before training."""

from __future__ import annotations

import weakref

import pytest
import torch

from robomimic_ddp.checkpoint import host_checkpoint as checkpoint
from robomimic_ddp.errors import CheckpointError
from tests.hostile import PROGRAM

file_utils = pytest.importorskip("robomimic.utils.file_utils")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A checkpoint, on a machine that seems to have a GPU: the host then names no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = tmp_path / "model.pth"
    weights = {"nets": {"weight": torch.ones(3)}}
    torch.save({"model": weights, "variable_state": {"epoch": 4}}, path)
    return path


@pytest.fixture
def places(monkeypatch):
    """`map_location` of every `torch.load`."""
    seen, load = [], torch.load

    def noted(file, map_location=None, **more):
        seen.append(map_location)
        return load(file, map_location, **more)

    monkeypatch.setattr(torch, "load", noted)
    return seen


def test_no_rank_reads_onto_a_gpu(file, places):
    host, load = file_utils.load_dict_from_checkpoint, torch.load
    with checkpoint.read_on_cpu("robomimic"):
        file_utils.maybe_dict_from_checkpoint(ckpt_path=str(file))
        torch.load(file, weights_only=False)
    assert places == ["cpu", None], "only the host's reader is changed"
    assert file_utils.load_dict_from_checkpoint is host and torch.load is load


def test_weights_are_let_go_and_the_rest_stays(file):
    with checkpoint.read_on_cpu("robomimic") as read:
        found = file_utils.load_dict_from_checkpoint(str(file))
        weight = weakref.ref(found["model"]["nets"]["weight"])
        checkpoint.release(read)
    assert weight() is None and found == {"variable_state": {"epoch": 4}} and not read


def test_the_checkpoint_that_a_config_names_runs_no_program(tmp_path, monkeypatch):
    """Even where it was exchanged after it was checked."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pth"
    torch.save({"model": PROGRAM}, path)
    with checkpoint.read_on_cpu("robomimic", str(path)):
        with pytest.raises(CheckpointError, match="asks for posix.mkdir"):
            file_utils.load_dict_from_checkpoint("model.pth")
        torch.save({"model": {"weight": torch.ones(2)}}, path)
        read = file_utils.load_dict_from_checkpoint(str(path))
    assert torch.equal(read["model"]["weight"], torch.ones(2))
    assert not (tmp_path / "executed").exists()


def test_a_host_without_such_a_reader_is_left_alone():
    with checkpoint.read_on_cpu("json") as read:
        assert read == []
