"""What the seams of a host get: metadata, datasets, and a policy that trains on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.source import is_rlds_folder
from robomimic_ddp.data.rlds.loaders.make import make_loader
from tests.rlds.conftest import CAMERAS, STATES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def modalities():
    """The host's ObsUtils, given what the keys are."""
    ObsUtils = pytest.importorskip("robomimic.utils.obs_utils")
    return ObsUtils.initialize_obs_utils_with_config


def test_metadata_is_what_the_host_expects(make_config, modalities, stored):
    config = make_config(observation={"image_dim": [12, 20]})
    modalities(config)
    (entry,) = host_datasets.dataset_configs(config)
    assert is_rlds_folder(entry["path"]) and entry["path"] == str(stored.folder)
    assert not is_rlds_folder(str(stored.folder.parent))
    meta = host_datasets.env_metadata(entry["path"])
    assert meta["env_name"] == "made_up" and set(meta) == {"env_name", "type", "env_kwargs"}
    shapes = host_datasets.shape_metadata(entry, config.train.action_keys, config.all_obs_keys)
    assert shapes["ac_dim"] == 10 and shapes["use_images"] and not shapes["use_depths"]
    assert list(shapes["all_shapes"].items()) == [
        (CAMERAS[0], [3, 12, 20]),
        (CAMERAS[1], [3, 12, 20]),
        (STATES[0], [6]),
        (STATES[1], [1]),
    ]
    assert shapes["all_obs_keys"] == config.all_obs_keys


def test_droids_own_values_are_taken(load):
    """As in DROID's config files: 200 calls, 48 threads, a cap of 100, shapes beside the keys."""
    train, _ = load(
        num_parallel_calls=200, traj_transform_threads=48, traj_read_threads=48,
        subsample_length=100, sample_weights=[1], action_shapes=[[1, 3], [1, 6], [1, 1]],
    )  # fmt: skip
    loader = make_loader(train, 4, 0, 2, 0)
    assert 1 <= loader.batching.threads <= 64
    assert loader.batching.shuffle_buffer <= len(train)
    assert next(iter(loader))["actions"].shape == (4, 17, 10)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["tensorflow", "torchvision"])
def test_tensorflow_and_torchvision_live_together(first):
    """In either order: loaded the wrong way round, their LLVMs end the process (canary). Every
    worker of the whole suite loads both, too.
    """
    ours = "from robomimic_ddp.data.rlds.tf_import import import_tensorflow; import_tensorflow()"
    lines = [ours, "import torchvision"]
    code = "\n".join(lines if first == "tensorflow" else lines[::-1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
