"""Odd but legal file names: they work, or are refused in one clear error; nothing is executed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, Place, require_one_clear_error
from tests.hosts import FINISHED
from tests.patches.support import snapshot, write_host

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]

NAMES = {
    "spaces and quotes": 'my data\'s "set"',
    "a newline": "two\nlines",
    "dashes": "--config=x -rf",
    "unicode": "données-データ-🤖",
    "commands": "$(touch executed)`touch executed`; touch executed;",
    "references": "${train.seed} $HOME [x]{y}",
    "patterns": "*?\\#b%s{0}",
}
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
    """As the shell's --config <(program)."""
    os.mkfifo(pipe := place.folder / "pipe")
    text = place.config(SHORT).read_text()
    threading.Thread(target=pipe.write_text, args=(text,), daemon=True).start()
    return [str(pipe)]


def given_in_dotlist(key: str, name: str):
    """The same value on the command line, where `[`, `#` and `${` mean something to YAML."""
    return lambda place: [f"load_from={place.config(SHORT)}", f"{key}={place.folder}/{name}"]


HOSTS_ENTRY = tuple(
    Case(f"paths: {kind}", trains_in(name), (), entry="train") for kind, name in NAMES.items()
) + (Case("paths: a pipe", from_a_pipe, (), entry="train"),)


@rows(*HOSTS_ENTRY)
def test_training_works_where_the_name_is_odd(case: Case, outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.stderr
    assert FINISHED in outcome.stdout
    assert any(path.endswith("last.pth") for path in outcome.after)
    assert not [path for path in outcome.after if path.endswith("executed")]
    changed = [path for path, digest in outcome.before.items() if outcome.after[path] != digest]
    assert not changed


@rows(
    Case(
        "paths: a missing dataset with a command in its name",
        given_in_dotlist("train.data", "$(touch executed).hdf5"),
        ("there is no dataset", "$(touch executed).hdf5"),
    ),
    Case(
        "paths: a reference on the command line",
        given_in_dotlist("train.output_dir", "${nothing}"),
        ("nothing", "reference to another key"),
    ),
    Case(
        "paths: a config with a command in its name",
        lambda place: [f"load_from={place.folder}/$(touch executed).json"],
        ("$(touch executed).json: no such file",),
    ),
    Case(
        "paths: an output directory that is a file",
        lambda place: [
            f"load_from={place.config(SHORT)}",
            f"train.output_dir={place.own_hdf5(lengths=(5, 5, 5))}",
        ],
        ("train.output_dir", "data.hdf5", "is a file"),
    ),
    Case(
        "paths: an output directory below a file",
        lambda place: [
            f"load_from={place.config(SHORT)}",
            f"train.output_dir={place.own_hdf5(lengths=(5, 5, 5))}/runs",
        ],
        ("train.output_dir", "data.hdf5", "is a file"),
    ),
    Case(
        "paths: an output directory of the kernel's",
        lambda place: [f"load_from={place.config(SHORT)}", "train.output_dir=/proc/runs"],
        ("train.output_dir='/proc/runs'", "nothing may be written in /proc"),
    ),
    Case(
        "paths: an empty output directory",
        lambda place: [f"load_from={place.config(SHORT)}", "train.output_dir=''"],
        ("train.output_dir=''", "folder"),
    ),
    Case(
        "paths: an experiment's name that leaves the folder",
        lambda place: [f"load_from={place.config(SHORT)}", "experiment.name=../../x"],
        ("experiment.name='../../x'", "name of a folder"),
    ),
    Case(
        "paths: an empty experiment's name",
        lambda place: [f"load_from={place.config(SHORT)}", "experiment.name=''"],
        ("experiment.name=''", "name of a folder"),
    ),
)
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
