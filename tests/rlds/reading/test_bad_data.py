"""Each mistake and each damage is one clear error that names where and what to do."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.records import masked_checksum, read_record
from robomimic_ddp.data.rlds.index.source import Source, find_dataset
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline.images import RecordError, decode, encode_jpeg
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
    assert "encoded image" in message(
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
    assert "is not an RLDS dataset" in message(find_fields, source.features, "flat", [], [], [])


FEATURES = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
EVIL = {"type": "evil.Text", "content": {}}
INNER = json.dumps({"features": {"steps": {"pythonClassName": "evil.Text"}}})


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "evil.Text", "text": {}},
        {"pythonClassName": FEATURES, "jsonFeature": {"json": json.dumps({"steps": EVIL})}},
        {"type": FEATURES, "proto_cls": "tensorflow_datasets.FeaturesDict", "content": INNER},
        {"type": FEATURES, "content": {"steps": EVIL}},
    ],
    ids=["named", "in text", "in text of a message", "in older files"],
)
def test_features_of_another_package_are_not_imported(features, copy, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (copy / "features.json").write_text(json.dumps(features))
    error = message(lambda: Source(copy).builder)
    assert not (tmp_path / "ran").exists()
    assert "names the class evil.Text" in error and error.count("\n") == 0


def test_record_files_of_another_folder_are_not_read(copy):
    info = copy / "dataset_info.json"
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
    assert template in info.read_text()
    info.write_text(info.read_text().replace(template, f"../1.0.0/../{template}"))
    assert "names record files in other folders" in message(lambda: Source(copy).files)


@pytest.mark.parametrize("length", [2**36, 2**63 - 1, 2**64 - 1])
def test_the_length_of_a_record_is_no_reason_to_take_memory(tmp_path, length):
    head = length.to_bytes(8, "little")
    (tmp_path / "a").write_bytes(head + masked_checksum(head) + bytes(100))
    with pytest.raises(RecordError, match=f"cut off: 100 of {length} bytes"):
        read_record(tmp_path / "a", 0)


def picture(kind: str, height: int, width: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGB" if kind == "EPS" else "1", (width, height)).save(written, kind)
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "stored", "words"),
    [
        (
            encode_jpeg(np.zeros((8, 16, 3), np.uint8), 90),
            (16, 16),
            "has 8x16 pixels, not the 16x16",
        ),
        (picture("PNG", 8, 16), (16, 16), "has 8x16 pixels, not the 16x16"),
        (picture("EPS", 16, 16), (16, 16), "cannot identify image file"),
    ],
)
def test_a_frame_that_differs_from_the_metadata(data, stored, words):
    with pytest.raises(RecordError, match=words):
        decode(data, stored)
