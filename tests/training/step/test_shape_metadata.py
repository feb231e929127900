"""`get_shape_metadata_from_dataset` in the forms that hosts have: each gets its own calls."""

from __future__ import annotations

import pytest

import robomimic_ddp.api as DDPUtils
from robomimic_ddp.errors import DataError
from robomimic_ddp.training import data_loaders


def of_an_entry(dataset_config, action_keys, all_obs_keys=None, verbose=False):
    return dataset_config["path"], action_keys, all_obs_keys, verbose


def of_a_path(dataset_path, all_obs_keys=None, verbose=False):
    return dataset_path, None, all_obs_keys, verbose


def of_droids_kind(
    dataset_path, batch, action_keys, all_obs_keys=None, ds_format="x", verbose=False, config=None
):
    return dataset_path, action_keys, all_obs_keys, verbose


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (of_an_entry, ({"path": "a"}, ["x"]), {"all_obs_keys": ["o"]}, ("a", ["x"], ["o"], False)),
        (of_a_path, ("a", ["o"]), {"verbose": True}, ("a", None, ["o"], True)),
        (
            of_droids_kind,
            (),
            {"dataset_path": "a", "batch": None, "action_keys": 2},
            ("a", 2, None, False),
        ),
        (of_droids_kind, (None, {"obs": 1}, 2), {}, (None, 2, None, False)),
    ],
    ids=["entry", "path", "more by name", "no path"],
)
def test_the_hosts_own_call(function, args, kwargs, expected):
    assert DDPUtils.rlds_shape_metadata(function)(*args, **kwargs) == expected


def test_rlds_data_where_only_a_path_is_given_is_one_error(monkeypatch):
    monkeypatch.setattr(data_loaders, "is_rlds_folder", lambda path: path == "rlds")
    with pytest.raises(DataError, match="train.data"):
        DDPUtils.rlds_shape_metadata(of_a_path)("rlds")
    assert DDPUtils.rlds_shape_metadata(of_a_path)("a.hdf5")[0] == "a.hdf5"


def test_a_call_that_does_not_fit_is_the_hosts_own_error():
    with pytest.raises(TypeError, match="dataset_path"):
        DDPUtils.rlds_shape_metadata(of_a_path)()
