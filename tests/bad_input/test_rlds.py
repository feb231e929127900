"""RLDS settings that cannot be read: folders through the entry (damaged records: tests/rlds)."""

from __future__ import annotations

import json

import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, Place, require_one_clear_error

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]

STATE = "robot_state/cartesian_position"
RLDS = {
    "data_format": "droid_rlds",
    "dataset_names": ["droid"],
    "action_keys": ["action/abs_pos"],
    "action_config": {"action/abs_pos": {"normalization": "min_max"}},
}


def rlds(*arguments: str, version: str | None = "1.0.0", **train):
    """A dataset `droid` with metadata only, and `arguments` over a config that names it."""

    def make(place: Place) -> list[str]:
        data = place.folder / "data"
        folder = data / "droid" / (version or "")
        folder.mkdir(parents=True)
        if version is not None and "incomplete" not in version:
            (folder / "dataset_info.json").write_text("{")
        changes = {
            "train": {**RLDS, "data_path": str(data), **train},
            "observation": {"modalities": {"obs": {"low_dim": [STATE]}}},
        }
        path = place.config(changes)
        config = json.loads(path.read_text())
        for key in ("data", "hdf5_filter_key", "hdf5_validation_filter_key"):
            del config["train"][key]
        path.write_text(json.dumps(config))
        return [f"load_from={path}", *arguments]

    return make


def data_path_is_a_file(place: Place) -> list[str]:
    return [*rlds()(place), f"train.data_path={place.own_hdf5(lengths=(5, 5, 5))}"]


FOLDERS = (
    Case("rlds: no folder", rlds("train.data_path=/none"), ("train.data_path='/none'", "folder")),
    Case("rlds: no path", rlds("train.data_path=''"), ("train.data_path=''", "is not a folder")),
    Case("rlds: a file for a folder", data_path_is_a_file, ("data.hdf5' is not a folder",)),
    Case(
        "rlds: unknown schema",
        rlds("train.rlds_schema=brigde"),
        ("train.rlds_schema='brigde'", "bridge, droid", "inspect-data"),
    ),
    Case(
        "rlds: schemas for more datasets",
        rlds("train.rlds_schema=[droid,bridge]"),
        ("train.rlds_schema=['droid', 'bridge']", "each of the 1 dataset(s)"),
    ),
    Case(
        "rlds: unknown version",
        rlds("train.dataset_version=2.0.0"),
        ("no version '2.0.0'", "found 1.0.0"),
    ),
    Case("rlds: no version at all", rlds(version=None), ("is not ready", "an empty folder")),
    Case(
        "rlds: still being written",
        rlds(version="1.0.0.incompleteX"),
        ("still being written", "finish preparing"),
    ),
    Case(
        "rlds: metadata that cannot be read",
        rlds(),
        ("the metadata", "droid/1.0.0", "Prepare the dataset again"),
        late=True,
    ),
)

VALUES = tuple(
    Case(f"rlds: {argument}", rlds(argument), words)
    for argument, words in (
        # these two through the entry
        ("train.data_format=rlds", ("train.data_format='rlds'", "droid_rlds", "robomimic")),
        ("train.dataset_names=[]", ("train.dataset_names=[]", "names of the datasets")),
        ("train.dataset_names=[a,b]", ("train.sample_weights=[1.0]", "2 dataset(s)")),
        ("train.sample_weights=[1,2]", ("train.sample_weights=[1, 2]", "1 dataset(s)")),
        ("train.sample_weights=[-1]", ("train.sample_weights=[-1]", "at least 0")),
        ("train.sample_weights=[0]", ("train.sample_weights=[0]", "not all 0")),
        ("train.shuffle_buffer_size=0", ("train.shuffle_buffer_size=0", "at least 1")),
        ("train.subsample_length=-3", ("train.subsample_length=-3", "or null")),
        ("train.num_parallel_calls=0", ("train.num_parallel_calls=0", "or null")),
        ("train.dataset_version=1.0", ("train.dataset_version=1.0", "text in quotes")),
        ("observation.image_dim=[0,64]", ("observation.image_dim=[0, 64]", "pixels")),
        ("observation.image_dim=128", ("observation.image_dim=128", "list")),
        ("observation.image_antialias=true", ("unknown key", "observation.image_antialias")),
        ("train.action_keys=[]", ("train.action_keys=[]", "at least one")),
        ("train.action_keys=[action/abs_pos,action/abs_pos]", ("names 'action/abs_pos' twice",)),
        ("train.action_keys=[action/abs_rot_6d]", ("has no 'action/abs_rot_6d'", "needs an entry")),
        ("train.action_config.action/abs_pos=minmax", ("is minmax", "needs an entry")),
        (
            "train.action_config.action/abs_pos.normalization=minmax",
            ("'minmax'", '"min_max" or "gaussian"'),
        ),
        ("train.shufle_buffer_size=9", ("unknown key", "train.shuffle_buffer_size")),
    )
)


@rows(FOLDERS[0], FOLDERS[-1], *VALUES[:2])
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)


@rows(*FOLDERS[1:-1], *VALUES[2:])
def test_it_is_refused(case: Case, refusal: str) -> None:
    assert not [word for word in case.words if word not in refusal], refusal
