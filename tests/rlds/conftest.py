"""Small RLDS datasets, written once per session, and host configs that point at them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rlds import other_shapes

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")

LENGTHS = (1, 2, 3, 5, 9, 17, 30, 4, 8, 11, 2, 6, 21, 7)
WORDLESS, FAILED = {3, 9}, {2, 12}
KEPT = [number for number in range(len(LENGTHS)) if number not in WORDLESS | FAILED]
HEIGHT, WIDTH, FILES = 24, 40, 5
SMALL = (5, 6, 7, 10)
"""Episodes of the small dataset; their windows are numbered after all of the large one's."""
FIRST = sum(LENGTHS)
WEIGHTS = [1.0, 3.0]
CAMERAS = (
    "camera/image/varied_camera_1_left_image",
    "camera/image/varied_camera_2_left_image",
    "camera/image/hand_camera_left_image",
)
STATES = (
    "robot_state/cartesian_position",
    "robot_state/gripper_position",
    "robot_state/joint_position",
)
ACTIONS = ("action/abs_pos", "action/abs_rot_6d", "action/gripper_position")


def made_up_episode(number: int) -> dict[str, Any]:
    """Episode `number`: random numbers everywhere, pictures smooth enough for JPEG."""
    random = np.random.RandomState(number)
    steps = []
    for step in range(LENGTHS[number]):
        corner = random.randint(0, 255, (3, 3, 4, 3))
        pictures = corner.repeat(HEIGHT // 3, 1).repeat(WIDTH // 4, 2).astype(np.uint8)
        steps.append(
            {
                "observation": {
                    "exterior_image_1_left": pictures[0],
                    "exterior_image_2_left": pictures[1],
                    "wrist_image_left": pictures[2],
                    "cartesian_position": random.normal(size=6),
                    "gripper_position": np.array([step / 30]),
                    "joint_position": random.normal(size=7),
                },
                "action_dict": {
                    "cartesian_position": random.uniform(-3, 3, 6),
                    "gripper_position": random.uniform(0, 1, 1),
                },
                "action": random.normal(size=7),
            }
        )
    language = "" if number in WORDLESS else f"do task {number}"
    return {"steps": steps, "success": number not in FAILED, "language": language}


def write(folder: Path, name: str = "made_up", version: str = "1.0.0") -> Path:
    """The made-up dataset under `folder`; returns its version folder."""
    from scripts.write_rlds import write_dataset

    episodes = (made_up_episode(number) for number in range(len(LENGTHS)))
    return write_dataset(str(folder), name, version, episodes, len(LENGTHS), FILES)


@dataclass
class Stored:
    """A written dataset: where it is, and its episodes fully decoded by tensorflow-datasets."""

    folder: Path
    cache: Path
    episodes: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="session")
def stored(tmp_path_factory) -> Stored:
    """The made-up dataset, read back the slow and obvious way."""
    import tensorflow_datasets as tfds

    root = tmp_path_factory.mktemp("rlds")
    folder = write(root / "data")
    episodes = []
    for episode in tfds.builder_from_directory(str(folder)).as_dataset("train"):
        steps = list(episode["steps"].as_numpy_iterator())
        path = episode["episode_metadata"]["file_path"].numpy().decode()
        episodes.append({"steps": steps, "file_path": path})
    return Stored(folder, root / "cache", episodes)


@pytest.fixture(scope="session")
def small(stored, tmp_path_factory):
    """A second dataset in the folder of the first: larger actions, pictures of another size."""
    from scripts.write_rlds import write_dataset

    def episodes():
        for number in SMALL:
            episode = made_up_episode(number)
            for step in episode["steps"]:
                step["action_dict"]["cartesian_position"] *= 2
                for camera in ("exterior_image_1_left", "exterior_image_2_left"):
                    step["observation"][camera] = step["observation"][camera][:16, :20]
                wrist = step["observation"]["wrist_image_left"]
                step["observation"]["wrist_image_left"] = wrist[:16, :20]
            yield episode

    return write_dataset(
        str(stored.folder.parent.parent), "small", "1.0.0", episodes(), len(SMALL), 2
    )


@pytest.fixture(scope="session")
def others(tmp_path_factory) -> Path:
    """A data_path with both datasets of other shapes."""
    root = tmp_path_factory.mktemp("others")
    other_shapes.write_bridge(root), other_shapes.write_ours(root)
    return root


@pytest.fixture
def blank_sheet(monkeypatch) -> None:
    """`inspect-data -o` draws an empty contact sheet: matplotlib takes seconds for a real one."""
    from robomimic_ddp.commands.inspect_data import drafts

    monkeypatch.setattr(drafts, "_draw", lambda source, episodes, path: path.touch())


@pytest.fixture
def copy(stored, tmp_path) -> Path:
    """A copy of the made-up dataset to damage: its version folder."""
    folder = tmp_path / "data" / "made_up" / "1.0.0"
    shutil.copytree(stored.folder, folder)
    return folder


@pytest.fixture
def make_config(stored):
    """`make_config(train={...}, ...)`: a diffusion policy's config on the made-up dataset."""
    factory = pytest.importorskip("robomimic.config").config_factory

    def make(experiment=None, observation=None, cameras=CAMERAS[:2], states=STATES[:2], **train):
        from robomimic_ddp.config.host import host_config

        config = factory("diffusion_policy")
        host_config.declare_rlds_keys(config)
        with config.unlocked():
            config.train.update(
                data_format="droid_rlds",
                data_path=str(stored.folder.parent.parent),
                dataset_names=[stored.folder.parent.name],
                data_cache_dir=str(stored.cache),
                action_keys=list(ACTIONS),
                action_config={key: {"normalization": "min_max"} for key in ACTIONS},
                batch_size=4,
            )
            config.train.update(**train)
            config.observation.image_dim = [HEIGHT, WIDTH]
            config.observation.modalities.obs.rgb = list(cameras)
            config.observation.modalities.obs.low_dim = list(states)
            config.observation.update(**(observation or {}))
            config.experiment.update(**(experiment or {}))
        return config

    return make


@pytest.fixture
def load(make_config):
    """`load(**as make_config)`: the train and validation datasets of that config."""
    from robomimic_ddp.data.rlds import host_datasets

    def make(**changes):
        config = make_config(**changes)
        return host_datasets.datasets_from_config(config, config.all_obs_keys)

    return make


@pytest.fixture
def config_of(make_config, tmp_path):
    """`config_of(episodes, files, **as make_config)`: the config of a dataset of these alone."""
    from scripts.write_rlds import write_dataset

    def make(episodes, files=1, **changes):
        write_dataset(str(tmp_path), "few", "1.0.0", episodes, len(episodes), files)
        where = {"data_path": str(tmp_path), "dataset_names": ["few"]}
        return make_config(**{**where, "data_cache_dir": str(tmp_path / "cache"), **changes})

    return make
