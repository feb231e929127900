"""Odd but legal file names: they work, or are refused in one clear error; nothing is executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import (
    NAMES,
    Case,
    Outcome,
    Place,
    dotlist,
    require_one_clear_error,
)
from tests.hosts import FINISHED
from tests.patches.support import snapshot, write_host

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]

SHORT = {
    "experiment": {
        "epoch_every_n_steps": 1,
        "validate": False,
        "save": {"on_best_validation": False},
    },
    "train": {"num_epochs": 1, "hdf5_validation_filter_key": None},
}


def trains_in(name: str):
    """Dataset, config and output directory in a folder of that name, from the working folder."""

    def make(place: Place) -> list[str]:
        odd = Place(place.folder / name, place.shared)
        odd.folder.mkdir()
        data = odd.own_hdf5(lengths=(5, 5, 5, 5))
        return [str(odd.config(SHORT, data))]

    return make


def from_a_pipe(place: Place) -> list[str]:
    """As the shell's --config <(program), which one rank alone could read."""
    os.mkfifo(pipe := place.folder / "pipe")
    return [str(pipe)]


def below_a_file(path: str):
    """A dataset's file in place of the folder for runs, or of one above it."""
    return lambda place: [*dotlist()(place), f"train.output_dir={place.own_hdf5()}{path}"]


WORK = tuple(
    Case(kind, trains_in(NAMES[kind]), (), entry="train")
    for kind in ("spaces, quotes, a newline", "commands")
)
REFUSED = (
    *(
        Case(setting, dotlist(setting), words)
        for setting, words in (
            ("train.data=$(touch executed).hdf5", ("no dataset", "$(touch executed).hdf5")),
            ("train.output_dir=${nothing}", ("nothing", "reference to another key")),
            ("train.output_dir=/proc/runs", ("'/proc/runs'", "nothing may be written in /proc")),
            ("train.output_dir=''", ("train.output_dir=''", "folder")),
            ("experiment.name=../../x", ("experiment.name='../../x'", "name of a folder")),
            ("experiment.name=''", ("experiment.name=''", "name of a folder")),
        )
    ),
    Case(
        "a config with a command in its name",
        lambda place: [f"load_from={place.folder}/$(touch executed).json"],
        ("$(touch executed).json: no such file",),
    ),
    Case("a pipe", from_a_pipe, ("is a pipe: a file is needed",), entry="train"),
    *(
        Case(f"a file{path} for runs", below_a_file(path), ("train.output_dir", "is a file"))
        for path in ("", "/runs")
    ),
)


@rows(*WORK)
def test_training_works_where_the_name_is_odd(case: Case, outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.stderr
    assert FINISHED in outcome.stdout
    assert any(path.endswith("last.pth") for path in outcome.after)
    assert not [path for path in outcome.after if path.endswith("executed")]
    changed = [path for path, digest in outcome.before.items() if outcome.after[path] != digest]
    assert not changed


@rows(*REFUSED)
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)
    assert not [path for path in outcome.after if path.endswith("executed")]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_checkout_of_an_odd_name_is_patched_and_given_back(
    name: str, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = write_host(tmp_path / name)
    before = snapshot(tmp_path)
    for words in (["status"], ["diff"], ["apply"], ["apply", "--check"], ["revert"]):
        code, _, err = command(*words, tmp_path / name)
        assert (code, err) == (0, "")
    assert snapshot(tmp_path) == before and not (tmp_path / "executed").exists()
    assert package.is_dir()
