"""Each mistake and each damage is one clear error that names where and what to do."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.source import Source, find_dataset
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import FAILED, made_up_episode

pytestmark = pytest.mark.bad_input


def message(call, *arguments, error=DataError, **keywords):
    """The text of the error that the call ends with."""
    with pytest.raises(error) as caught:
        call(*arguments, **keywords)
    return str(caught.value)


def test_newest_version_is_chosen_by_number_not_by_letter(stored, tmp_path):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        shutil.copytree(stored.folder, tmp_path / "made_up" / version)
    (tmp_path / "made_up" / "2.0.0.incompleteABC").mkdir()
    assert find_dataset(str(tmp_path), "made_up").name == "1.10.0"
    assert find_dataset(str(tmp_path), "made_up", "1.2.0").name == "1.2.0"
    assert find_dataset(str(tmp_path / "made_up"), "made_up").name == "1.10.0"
    assert find_dataset(str(tmp_path / "made_up" / "1.9.0"), "made_up").name == "1.9.0"


def test_a_data_set_still_being_written(stored, tmp_path):
    shutil.copytree(stored.folder, tmp_path / "made_up" / "1.0.0.incompleteABC")
    text = message(find_dataset, str(tmp_path), "made_up")
    assert "still being written" in text
    (tmp_path / "made_up" / "1.0.0").mkdir()
    assert "dataset_info.json" in message(find_dataset, str(tmp_path), "made_up")


def test_missing_camera_state_and_action_are_named(make_config, stored):
    config = make_config(cameras=["camera/image/ceiling"])
    text = message(host_datasets.datasets_from_config, config, config.all_obs_keys)
    assert "camera/image/ceiling" in text and "observation/wrist_image_left" in text
    config = make_config(states=["robot_state/temperature"])
    assert "robot_state/temperature" in message(
        host_datasets.datasets_from_config, config, config.all_obs_keys
    )
    config = make_config(action_keys=["action/torque"])
    with config.values_unlocked():
        config.train.action_config["action/torque"] = {"normalization": None}
    text = message(host_datasets.datasets_from_config, config, config.all_obs_keys)
    assert "action/torque" in text and "action/abs_pos" in text
    config = make_config(cameras=["robot_state/cartesian_position"], states=())
    assert "encoded picture" in message(
        host_datasets.datasets_from_config, config, config.all_obs_keys
    )


def test_fewer_windows_than_one_step(load):
    train, _ = load()
    text = message(make_loader, train, len(train) // 2, 0, 3, 0)
    assert str(len(train)) in text and "fewer ranks" in text


def test_no_episode_after_the_filters(config_of):
    config = config_of([made_up_episode(n) for n in FAILED])
    text = message(host_datasets.datasets_from_config, config, config.all_obs_keys)
    assert "none of the 2 episodes" in text and "train.success_only" in text


def test_no_rlds_data_set_at_all(tmp_path):
    import tensorflow_datasets as tfds

    identity = tfds.core.dataset_info.DatasetIdentity(
        name="flat", version=tfds.core.Version("1.0.0"), data_dir=str(tmp_path), module_name="x"
    )
    features = tfds.features.FeaturesDict({"x": np.float32})
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=10)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"x": 1.0}]})
    writer.close_all()
    from robomimic_ddp.data.rlds.schema.fields import find_fields

    source = Source(tmp_path)
    assert "no RLDS dataset" in message(find_fields, source.features, "flat", [], [], [])
