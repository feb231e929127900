"""The look over HDF5 data before a run: where forks keep an episode's actions."""

from __future__ import annotations

import os

import numpy as np
import pytest

from robomimic_ddp.commands.inspect_data import hdf5
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.errors import ConfigError, DataError
from tests.section import Section

h5py = pytest.importorskip("h5py")


def look(
    path,
    *keys: str,
    mask: str | None = None,
    rgb: tuple[str, ...] = (),
    validate: bool = False,
    **more: object,
) -> None:
    data = path if path is None or isinstance(path, dict) else str(path)
    train = Section(data=data, action_keys=list(keys) or None, hdf5_filter_key=mask, **more)
    seen = {"modalities": {"obs": {"rgb": list(rgb)}}}
    shown = {"validate": validate}
    config = Section(train=train, experiment=shown, all_obs_keys=rgb, observation=seen)
    hdf5_validate.check(config)


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


def test_datasets_under_other_names_are_read_by_the_host_alone(data):
    look(None, data_prior=str(data), data_target=None, data_format="robomimic")
    with pytest.raises(ConfigError, match="train.data=None: expected at least one dataset"):
        look(None, data_prior=f"{data}.old", data_target=None, data_format="robomimic")


@pytest.mark.bad_input
@pytest.mark.parametrize("key", ["hand", "actions"])
def test_what_is_not_there_or_a_group_is_no_action(data, key):
    with pytest.raises(DataError, match=f"demo_0 does not contain '{key}': found actions/arm, "):
        look(data, key)


DEMO = "data/demo_0"
ODD = {
    "a mask of numbers": ("mask/one", np.arange(2), "'one' is not a list of episodes' names"),
    "a mask that is a group": ("mask/one/two", [1], "'one' is not a list of episodes' names"),
    "a mask of other letters": ("mask/one", [b"demo_\xff"], "'one' cannot be read .Unicode"),
    "masks that are no group": ("mask", [b"one"], "'mask' is a dataset; expected a group"),
    "a link to nothing": (f"{DEMO}/top", h5py.SoftLink("/gone"), "demo_0/top' cannot be read .Key"),
    "a link to no file": (f"{DEMO}/top", h5py.ExternalLink("gone.hdf5", "/x"), "top' cannot be r"),
    "text": (f"{DEMO}/top", [b"a"] * 3, "demo_0/top' is |S1; expected an array of numbers"),
    "nothing at all": (f"{DEMO}/top", h5py.Empty("f"), "top' is empty; expected"),
    "a group": (f"{DEMO}/top/inner", [1.0], "top' is a group; expected an array"),
    "an episode that is none": (DEMO, [1.0], "'data/demo_0' is a dataset; expected a group"),
    "a link for an episode": (DEMO, h5py.SoftLink("/gone"), "'data/demo_0' cannot be read"),
    "data that are no group": ("data", [1.0], "'data' is a dataset; expected a group"),
    "a link for the data": ("data", h5py.SoftLink("/gone"), "'data' cannot be read"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("place", "value", "words"), ODD.values(), ids=ODD)
def test_an_odd_structure_is_one_error_with_its_place(data, place, value, words):
    with h5py.File(data, "r+") as file:
        file["mask/one"] = [b"demo_0"]
        at = "/".join(place.split("/")[: 2 if place.startswith("mask") else 3])
        if at in file:
            del file[at]
        file[place] = value
    with pytest.raises(DataError, match=words) as caught:
        look(data, "top", mask="one")
    assert str(data) in str(caught.value)
    try:
        hdf5.report_of(data)
    except DataError:
        pass


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        *((DEMO, "num_samples", value) for value in ("three", "12", [3, 4], 2.5, h5py.Empty("i"))),
        *(("data", "env_args", value) for value in ([1, 2], b"\xff", "[]", h5py.Empty("i"))),
    ],
    ids=str,
)
def test_an_odd_attribute_is_one_error_with_its_name(data, place, name, value):
    with h5py.File(data, "r+") as file:
        file[place].attrs[name] = value
    with pytest.raises(DataError, match=rf"{name}") as caught:
        look(data, "top")
    assert str(data) in str(caught.value)
    if name == "num_samples":
        with pytest.raises(
            DataError, match="num_samples of demo_0 cannot be read|demo_0 has num_samples"
        ):
            hdf5.report_of(data)


@pytest.mark.bad_input
@pytest.mark.parametrize("weights", [(1, np.nan), (1, -1), (0, 0), (1, "2"), (1e308,) * 2])
def test_weights_that_are_none(data, weights):
    train = {"data": [{"path": str(data), "weight": weight} for weight in weights]}
    config = Section(train=Section(train), experiment={}, all_obs_keys=[])
    with pytest.raises(ConfigError, match="train.data has the weights .* a finite sum"):
        hdf5_validate.check(config)


@pytest.mark.bad_input
def test_one_entry_is_no_list(data):
    """Hosts would go over its keys."""
    with pytest.raises(ConfigError, match="train.data={'path': .* as a list of"):
        look({"path": str(data)})


@pytest.mark.bad_input
@pytest.mark.parametrize(("mask", "prefix"), [(None, ""), ("one", "one_")])
def test_a_host_without_a_key_for_validation_names_its_parts_itself(data, mask, prefix):
    """As robomimic 0.1 does."""
    with h5py.File(data, "a") as file:
        file[f"mask/{prefix}train"] = [b"demo_0"]
    with pytest.raises(DataError, match=f"no filter key '{prefix}valid': found {prefix}train"):
        look(data, mask=mask, validate=True)
    with pytest.raises(ConfigError, match="both must name a filter key"):
        look(data, mask=mask, validate=True, hdf5_validation_filter_key=None)


@pytest.mark.bad_input
def test_numbers_that_are_listed_as_pictures(data):
    with h5py.File(data, "r+") as file:
        file["data/demo_0/obs/camera"] = np.zeros((3, 8, 8, 3), np.uint8)
        file["data/demo_0/obs/position"] = np.zeros((3, 2))
    look(data, "top", rgb=("camera",))
    with pytest.raises(DataError, match="'obs/position' has shape .3, 2.* under low_dim"):
        look(data, "top", rgb=("camera", "position"))


@pytest.mark.bad_input
def test_a_pipe_is_no_data_set(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    for read in (look, hdf5.report_of):
        with pytest.raises(DataError, match="is a pipe: a file is needed"):
            read(pipe)


def test_links_that_work_and_whole_numbers_of_other_kinds_are_taken(data, tmp_path):
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = [[0.0]] * 3
    with h5py.File(data, "r+") as file:
        file[f"{DEMO}/outside"] = h5py.ExternalLink("other.hdf5", "/x")
        file[f"{DEMO}/inside"] = h5py.SoftLink(f"/{DEMO}/top")
        file["mask/one"] = ["demo_0"]  # text of any length
        for value in (3.0, np.array([3]), np.uint8(3)):
            file[DEMO].attrs["num_samples"] = value
            file.flush()
    look(data, "outside", "inside", mask="one")
    assert hdf5.report_of(data)["filter_keys"] == ["one"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("steps", "removed", "words"),
    [(0, "top", "demo_0 has num_samples=0"), (3, "actions", "demo_0 has no actions: found top")],
)
def test_inspect_data_refuses_what_training_does(data, steps, removed, words):
    hdf5.report_of(data)
    with h5py.File(data, "r+") as file:
        file["data/demo_0"].attrs["num_samples"] = steps
        del file[f"data/demo_0/{removed}"]
    with pytest.raises(DataError, match=words):
        hdf5.report_of(data)


def stored_elsewhere(file, kind):
    """Put the actions of an episode into another file."""
    group = file.create_group("data/demo_1")
    group.attrs["num_samples"] = 5
    if kind == "raw":
        places = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
        group.create_dataset("actions", (5, 2), "f8", external=places)
        return
    layout = h5py.VirtualLayout((5, 2), "f8")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", (5, 2))
    group.create_virtual_dataset("actions", layout)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kind", "words"),
    [("raw", "passwd', which is not an HDF5 file"), ("virtual", "which is not there")],
)
def test_numbers_of_other_files_are_not_taken_for_zeros(data, kind, words):
    with h5py.File(data, "r+") as file:
        del file["data/demo_0"]
        stored_elsewhere(file, kind)
    for read in (lambda path: look(path, "actions"), hdf5.report_of):
        with pytest.raises(DataError, match=words):
            read(data)
    if kind == "virtual":
        with h5py.File(data.with_name("other.hdf5"), "w") as other:
            other["x"] = np.ones((5, 2))
        look(data, "actions")


@pytest.mark.bad_input
def test_inspect_data_believes_no_length_that_the_actions_lack(data):
    with h5py.File(data, "r+") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = np.zeros((5, 2))
        file["data/demo_0"].attrs["num_samples"] = 2**62
    with pytest.raises(DataError, match=r"shape \(5, 2\), but num_samples says 4611"):
        hdf5.report_of(data)
