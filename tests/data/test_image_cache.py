"""ddp.cache for HDF5: the host's items to the bit, without the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.hdf5 import image_cache
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError
from tests.datasets import CAMERA, LOW_DIM

MODES = (image_cache.CACHE_MODE, "all", None)


def datasets(path, mode=image_cache.CACHE_MODE, filters=("train", "valid"), **changes):
    """The host's datasets of the filter keys."""
    import robomimic.utils.obs_utils as ObsUtils
    from robomimic.utils.dataset import SequenceDataset

    modalities = {"obs": {"low_dim": list(LOW_DIM), "rgb": [CAMERA]}}
    ObsUtils.initialize_obs_utils_with_obs_specs(modalities)
    shared = {"action_keys": ["actions"], "dataset_keys": ["actions"]}
    shared["action_config"] = {"actions": {"normalization": None}}
    shape = {"frame_stack": 2, "seq_length": 4, "pad_frame_stack": True, "pad_seq_length": True}
    keys = (*LOW_DIM, CAMERA)
    more = {**shared, **shape, "hdf5_use_swmr": True, "hdf5_cache_mode": mode}
    more = {**more, "load_next_obs": False, **changes}
    return [SequenceDataset(str(path), keys, filter_by_attribute=one, **more) for one in filters]


def require_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            require_equal(one[key], other[key])
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and (one == other).all()


@pytest.mark.parametrize("load_next_obs", [False, True])
def test_items_are_the_same_and_the_file_is_not_read(image_dataset, tmp_path, load_next_obs):
    plain = datasets(image_dataset, load_next_obs=load_next_obs)
    cached = datasets(image_dataset, load_next_obs=load_next_obs)
    image_cache.add_cache([*cached, None], str(tmp_path), 0)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + load_next_obs, "training and validation share them"
    for one, other in zip(plain, cached):
        other[0]  # reads the file for its statistics of actions
        other.close_and_delete_hdf5_handle()
        other.hdf5_path = "/nowhere"
        for number in range(len(one)):
            require_equal(one[number], other[number])


@pytest.mark.parametrize("mode", MODES[1:])
def test_other_cache_modes_are_left_as_they_are(image_dataset, tmp_path, mode):
    (train,) = datasets(image_dataset, mode, ["train"])
    image_cache.add_cache([train], str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


def test_a_changed_file_is_read_again(image_dataset, tmp_path):
    path = tmp_path / "data.hdf5"
    shutil.copyfile(image_dataset, path)
    (old,) = datasets(path, filters=["train"])
    image_cache.add_cache([old], str(tmp_path / "frames"), 0)
    before = old[0]["obs"][CAMERA].copy()
    old.close_and_delete_hdf5_handle()
    with h5py.File(path, "r+") as file:
        place = file[f"data/{old.demos[0]}/obs/{CAMERA}"]
        place[...] = 255 - place[...]
    os.utime(path, ns=(1, 1))
    (new,) = datasets(path, filters=["train"])
    image_cache.add_cache([new], str(tmp_path / "frames"), 0)
    assert (new[0]["obs"][CAMERA] == 255 - before).all()


def test_a_bound_that_is_too_small_is_refused(image_dataset, tmp_path):
    (train,) = datasets(image_dataset, filters=["train"])
    with pytest.raises(DataError, match="more than ddp.cache_gb"):
        image_cache.add_cache([train], str(tmp_path), 1e-9)


def filled_on_rank(path, folder):
    """On a rank: the episodes that it copied, and an item."""
    made, real = [], frame_cache.Column.write

    def write(self, row, *more):
        made.append(row)
        return real(self, row, *more)

    frame_cache.Column.write, frame_cache.UNIT_STEPS = write, 10
    try:
        (train,) = datasets(path, filters=["train"])
        group.barrier()
        image_cache.add_cache([train], folder, 0)
    finally:
        frame_cache.Column.write, frame_cache.UNIT_STEPS = real, 2048
    return made, train[5]["obs"][CAMERA]


def test_ranks_fill_it_together(ranks, image_dataset, tmp_path):
    found = ranks.run(filled_on_rank, str(image_dataset), str(tmp_path))
    (plain,) = datasets(Path(image_dataset), filters=["train"])
    assert sorted(found[0][0] + found[1][0]) == [0, 1, 2, 3]
    for _, frames in found:
        require_equal(frames, plain[5]["obs"][CAMERA])
