"""HDF5 datasets that cannot be trained on, some of them through the entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, Place, require_one_clear_error

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]


def data(change: Callable[[Any], Any] | None = None, *more: str, **train: Any):
    """A dataset of the case's own after `change(file)`; `train`: changes of that section."""

    def make(place: Place) -> list[str]:
        return [f"load_from={place.config({'train': train}, place.own_hdf5(change))}", *more]

    return make


def written(content: bytes):
    """A file with these bytes in place of a dataset."""

    def make(place: Place) -> list[str]:
        path = place.folder / "data.hdf5"
        path.write_bytes(content)
        return [f"load_from={place.config(data=path)}"]

    return make


def cut_off(place: Place) -> list[str]:
    path = place.own_hdf5()
    path.write_bytes(path.read_bytes()[:5000])
    return [f"load_from={place.config(data=path)}"]


def delete(*names: str):
    def change(file: Any) -> None:
        for name in names:
            del file[name]

    return change


def put(name: str, values: Any):
    def change(file: Any) -> None:
        del file[name]
        file[name] = values

    return change


def everywhere(key: str, first: int, value: float):
    """From step `first` on in every episode, so that whichever window comes first has it."""

    def change(file: Any) -> None:
        for name in file["data"]:
            values = file[f"data/{name}/{key}"][()]
            values[first:] = value
            file[f"data/{name}/{key}"][...] = values

    return change


def attribute(name: str, key: str, value: Any):
    def change(file: Any) -> None:
        file[name].attrs[key] = value

    return change


def no_env_args(file: Any) -> None:
    del file["data"].attrs["env_args"]


def renamed(file: Any) -> None:
    file.move("data/demo_0", "data/first")
    file["mask/train"][...] = np.array([b"first", *file["mask/train"][1:]])


FILES = (
    Case(
        "hdf5: no such file",
        lambda place: [f"load_from={place.config(data=place.folder / 'none.hdf5')}"],
        ("there is no dataset", "none.hdf5", "train.data"),
    ),
    Case(
        "hdf5: a folder",
        lambda place: [f"load_from={place.config(data=place.folder)}"],
        ("is a folder", "droid_rlds"),
    ),
    Case("hdf5: text", written(b"not a dataset\n"), ("data.hdf5", "cannot be opened as HDF5")),
    Case("hdf5: cut off", cut_off, ("data.hdf5", "cannot be opened as HDF5", "Copy")),
    Case("hdf5: no dataset named", data(None, "train.data=[]"), ("train.data=[]", "at least one")),
    Case("hdf5: an entry without path", data(data=[{"pth": "x"}]), ("'pth': 'x'", "with a path")),
)

STRUCTURE = (
    Case("hdf5: no group data", data(delete("data")), ("has no episodes", "found mask")),
    Case(
        "hdf5: no episodes",
        data(lambda file: [file["data"].__delitem__(name) for name in list(file["data"])]),
        ("has no episodes", "data/demo_0"),
    ),
    Case("hdf5: no env_args", data(no_env_args), ("env_args", "missing or not a JSON")),
    Case(
        "hdf5: no next observations",
        data(delete("data/demo_0/next_obs"), hdf5_load_next_obs=True),
        ("does not contain 'next_obs/", "obs/position", "train.hdf5_load_next_obs=true"),
    ),
    Case(
        "hdf5: unknown filter key",
        data(hdf5_filter_key="trian"),
        ("no filter key 'trian'", "found train, valid"),
    ),
    Case(
        "hdf5: empty filter key",
        data(put("mask/train", np.array([], dtype="S6"))),
        ("'train' names no episode",),
    ),
    Case(
        "hdf5: filter key of lost episodes",
        data(delete("data/demo_1")),
        ("'train' names demo_1", "not there"),
    ),
    Case(
        "hdf5: validation is training",
        data(hdf5_validation_filter_key="train"),
        ("demo_0 is in both filter keys",),
    ),
    Case(
        "hdf5: validation without a filter key",
        data(hdf5_validation_filter_key=None),
        ("experiment.validate is true", "hdf5_validation_filter_key=None"),
    ),
    Case(
        "hdf5: a filter key without validation",
        data(None, "experiment.validate=false"),
        ("hdf5_validation_filter_key='valid'", "experiment.validate is false"),
    ),
    Case("hdf5: an episode named otherwise", data(renamed), ("data/first", "demo_N")),
    Case(
        "hdf5: missing observation",
        data(delete("data/demo_2/obs/position")),
        ("demo_2 does not contain 'obs/position'", "obs/gripper"),
    ),
    Case(
        "hdf5: missing actions",
        data(delete("data/demo_3/actions")),
        ("demo_3 does not contain 'actions'", "Take 'actions' out of the config"),
    ),
)

SHAPES = (
    Case(
        "hdf5: empty episode",
        data(attribute("data/demo_1", "num_samples", 0)),
        ("demo_1 has num_samples=0",),
    ),
    Case(
        "hdf5: fewer actions than steps",
        data(put("data/demo_1/actions", np.zeros((3, 4)))),
        ("demo_1: 'actions' has shape (3, 4)", "num_samples says 7"),
    ),
    Case(
        "hdf5: other actions in one episode",
        data(put("data/demo_2/actions", np.zeros((15, 5)))),
        ("demo_2: 'actions' has shape (5,)", "other episodes have (4,)"),
    ),
    Case(
        "hdf5: actions without dimensions",
        data(put("data/demo_0/actions", np.zeros(12))),
        ("demo_0: 'actions' has shape (12,)", "[steps, dimensions]"),
    ),
    Case(
        "hdf5: other observations in one episode",
        data(put("data/demo_1/obs/position", np.zeros((7, 2)))),
        ("demo_1: 'obs/position' has shape (2,)", "(3,)"),
    ),
    Case(
        "hdf5: a batch larger than the data",
        data(None, "train.batch_size=64"),
        ("the training set has 43 samples", "64", "smaller batch"),
        late=True,
    ),
    Case(
        "hdf5: a batch larger than the validation data",
        data(None, "train.batch_size=20"),
        ("the validation set has 17 samples", "20", "smaller batch"),
        late=True,
    ),
)

NUMBERS = tuple(
    Case(f"hdf5: {name}", make, words, late=True)
    for name, make, words in (
        (
            "NaN in an observation",
            data(everywhere("obs/position", 2, np.nan)),
            ("the loss is nan", "obs/position", "demo_0, step 2", "rank 0 of 1"),
        ),
        (
            "a learning rate that diverges",
            data(
                None,
                "algo.optim_params.policy.learning_rate.initial=1e30",
                "algo.optim_params.policy.learning_rate.warmup_steps=0",
                "experiment.epoch_every_n_steps=20",
            ),
            ("the loss is", "all numbers of its batch are finite", "lower learning rate"),
        ),
    )
)


THROUGH_THE_ENTRY = (FILES[0], STRUCTURE[-1], *(case for case in SHAPES if case.late), *NUMBERS)


@rows(*THROUGH_THE_ENTRY)
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)


@rows(*(case for case in (*FILES, *STRUCTURE, *SHAPES) if case not in THROUGH_THE_ENTRY))
def test_it_is_refused(case: Case, refusal: str) -> None:
    assert not [word for word in case.words if word not in refusal], refusal
