"""Checkpoints that this run cannot begin from, some of them through the entry."""

from __future__ import annotations

import pickle
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robomimic_ddp.checkpoint import safe_load
from robomimic_ddp.errors import CheckpointError
from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, Place, require_one_clear_error
from tests.checkpoint import small
from tests.hostile import PROGRAM, Calls

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]


def saved(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def of_diffusion(model: dict[str, Any]) -> dict[str, Any]:
    return small.content(model=model, algo_name="diffusion_policy")


def hostile_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"model": PROGRAM}))


TIMES = Calls(timeit.timeit, ("__import__('os').mkdir('executed')", "pass", None, 1))
"""Through a module that no list of dangerous ones names."""


def cut_off(path: Path) -> None:
    small.write(path, torch.zeros(5000))
    path.write_bytes(path.read_bytes()[:9000])


REFUSED: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "a folder": (lambda path: path.mkdir(), ("is a folder",)),
    "a run": (
        lambda path: (path.mkdir(), (path / "last.pth").touch()),
        ("is a folder", "/last.pth."),
    ),
    "empty": (lambda path: path.touch(), ("damaged", "0 bytes")),
    "text": (lambda path: path.write_text("weights"), ("is not a torch checkpoint", "not loaded")),
    "a pickle that runs a program": (hostile_pickle, ("is not a torch checkpoint", "not loaded")),
    "something else": (
        saved({"weights": torch.zeros(2)}),
        ("contains ['weights']", "not a robomimic checkpoint"),
    ),
    "a tensor": (saved(torch.zeros(2)), ("contains Tensor", '"model"')),
    "another algorithm": (small.write, ("written by the algorithm 'bc'", "'diffusion_policy'")),
    "an empty model": (
        saved(of_diffusion({})),
        ('contains an empty "model"', "not a robomimic checkpoint"),
    ),
}


@pytest.mark.parametrize(("write", "words"), REFUSED.values(), ids=REFUSED)
def test_a_training_does_not_begin_from_it(write, words, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pth"
    write(path)
    with pytest.raises(CheckpointError) as caught:
        safe_load.check(path, "diffusion_policy")
    assert not [word for word in words if word not in str(caught.value)], caught.value
    assert not (tmp_path / "executed").exists()


def checkpoint(write: Callable[[Path], Any]):
    """A run that is to begin from what `write(path)` made."""

    def make(place: Place) -> list[str]:
        path = place.folder / "model.pth"
        write(path)
        return [f"load_from={place.config({'experiment': {'ckpt_path': str(path)}})}"]

    return make


CASES = (
    Case("checkpoint: absent", checkpoint(lambda path: None), ("model.pth", "does not exist")),
    Case("checkpoint: cut off", checkpoint(cut_off), ("model.pth", "damaged", "last_bak.pth")),
    Case(
        "checkpoint: times",
        checkpoint(saved({"model": TIMES})),
        ("asks for timeit.timeit", "trust_checkpoint"),
    ),
    Case(
        "checkpoint: other shapes",
        checkpoint(saved(of_diffusion({"nets": {"policy.extra": torch.zeros(3)}}))),
        ("model.pth does not fit this run's nets", "config that it was trained with"),
        late=True,
    ),
    Case(
        "checkpoint: a model of something else",
        checkpoint(saved(of_diffusion({"weights": torch.zeros(3)}))),
        ("does not contain what this run's algorithm saves (KeyError: 'nets')",),
        late=True,
    ),
)


@rows(*CASES)
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)
