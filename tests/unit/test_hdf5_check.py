"""The look over HDF5 data before a run: where forks keep an episode's actions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from robomimic_ddp import hdf5_check
from robomimic_ddp.errors import DataError

h5py = pytest.importorskip("h5py")


def look(path, *keys: str) -> None:
    train = {"data": str(path), "action_keys": list(keys) or None}
    train = type("Train", (dict,), {"__getattr__": dict.__getitem__})(train)
    hdf5_check.check(SimpleNamespace(train=train, experiment={}, all_obs_keys=[]))


@pytest.fixture
def data(tmp_path):
    """One episode with its actions in a group."""
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = "{}"
        file.create_group("data/demo_0").attrs["num_samples"] = 3
        file["data/demo_0/actions/arm"] = [[0.0, 1.0]] * 3
        file["data/demo_0/actions/flat"] = [0.0] * 3
        file["data/demo_0/top"] = [[0.0]] * 3
    return path


def test_actions_at_the_top_and_in_a_group(data):
    look(data, "arm", "top")
    look(data)  # the host says what it expects


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hand", "demo_0 does not hold 'hand': found actions/arm, actions/flat, top"),
        ("actions", "demo_0 does not hold 'actions': found actions/arm"),
        ("flat", "'actions/flat' has shape .3,.; actions are .steps, dimensions."),
    ],
)
def test_what_is_not_there_or_no_action(data, key, words):
    with pytest.raises(DataError, match=words):
        look(data, key)
