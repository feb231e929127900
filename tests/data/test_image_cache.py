"""ddp.cache for HDF5: the host's items to the bit, images not from the file."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

from robomimic_ddp.config.options import resolve
from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.hdf5 import image_cache
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError
from robomimic_ddp.training import plan_summary
from tests.datasets import CAMERA, LENGTHS, LOW_DIM

MODES = (image_cache.LOW_DIM, None)


def datasets(path, mode=image_cache.LOW_DIM, filters=("train", "valid"), **changes):
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("load_next_obs", [False, True])
def test_items_are_the_same_and_images_are_not_read(
    image_dataset, tmp_path, mode, load_next_obs, monkeypatch
):
    plain = datasets(image_dataset, mode, load_next_obs=load_next_obs)
    cached = datasets(image_dataset, mode, load_next_obs=load_next_obs)
    image_cache.add_cache([*cached, None], str(tmp_path), 0)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + load_next_obs, "training and validation share them"
    wanted = [[one[number] for number in range(len(one))] for one in plain]
    real = h5py.Dataset.__getitem__

    def numbers_only(self, *arguments, **more):
        assert CAMERA not in self.name
        return real(self, *arguments, **more)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", numbers_only)
    for items, other in zip(wanted, cached):
        assert other._hdf5_file is None, "data workers are forked"
        if mode == image_cache.LOW_DIM:
            other[0]  # reads the file for its statistics of actions
            other.close_and_delete_hdf5_handle()
            other.hdf5_path = "/nowhere"
        for number, item in enumerate(items):
            require_equal(item, other[number])
        assert str(other) == str(other).replace("low_dim", str(mode or "none").lower())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_workers_deliver_the_same_batches(image_dataset, tmp_path, mode, context):
    plain, cached = (datasets(image_dataset, mode, ["train"])[0] for _ in range(2))
    image_cache.add_cache([cached], str(tmp_path), 0)
    plain.get_action_normalization_stats(), cached.get_action_normalization_stats()
    if context == "spawn":
        (made,) = pickle.loads(pickle.dumps([closed(cached)]))
        frames = int(cached.total_num_sequences) * 32 * 32 * 3
        assert len(pickle.dumps(closed(cached))) < frames, "frames are not sent to workers"
        require_equal(plain[3], made[3])
        return
    workers = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": context}
    for _ in range(2):
        batches = zip(*(DataLoader(one, **workers) for one in (plain, cached)), strict=True)
        assert all(require_equal(one, other) is None for one, other in batches)


def closed(one):
    one.close_and_delete_hdf5_handle()
    return one


def test_everything_in_memory_is_left_as_it_is(image_dataset, tmp_path):
    (train,) = datasets(image_dataset, "all", ["train"])
    image_cache.add_cache([train], str(tmp_path), 0)
    assert not list(tmp_path.iterdir()) and not hasattr(train, "cached")


def test_the_plan_says_what_is_cached_or_that_nothing_is(image_dataset, tmp_path):
    def said(mode):
        made = datasets(image_dataset, mode)
        image_cache.add_cache(made, str(tmp_path), 0)
        loaders = {role: DataLoader(one) for role, one in zip(("train", "valid"), made)}
        run = SimpleNamespace(loaders=loaders, options=resolve({"cache": str(tmp_path)}))
        (line,) = plan_summary._frame_cache(run)
        return line

    size = sum(LENGTHS) * (32 * 32 * 3 + 1) / 2**20
    for mode in MODES:
        assert said(mode).startswith(f"frame cache: {size:.1f} MiB of decoded frames in {tmp_path}")
    assert "is not used" in said("all") and "hdf5_cache_mode=low_dim or null" in said("all")


@pytest.mark.parametrize("bad", ["size", "kind", "missing", "layout"])
def test_episodes_that_do_not_agree_are_one_error(image_dataset, tmp_path, bad):
    path = tmp_path / "data.hdf5"
    shutil.copyfile(image_dataset, path)
    with h5py.File(path, "r+") as file:
        obs = file["data/demo_2/obs"]
        frames = obs[CAMERA][()]
        del obs[CAMERA]
        if bad in ("size", "kind"):
            obs[CAMERA] = frames[:, :16] if bad == "size" else frames.astype(np.float32)
    (train,) = datasets(path, None, ["train"])
    if bad == "layout":
        train.demos = ["demo"]
    expected = {
        "size": "'obs/camera_image' of demo_2 is uint8 .16, 32, 3., that of demo_0 is uint8 .32",
        "kind": "of demo_2 is float32",
        "missing": "of demo_2 is missing, that of demo_0",
        "layout": "has no data/demo/obs.*no other layout",
    }
    with pytest.raises(DataError, match=expected[bad]):
        image_cache.add_cache([train], str(tmp_path / "frames"), 0)


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
