"""What is delivered, element by element, against the slow reference and against the host's HDF5."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robomimic_ddp.data.rlds.host_datasets import datasets_from_config
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.order.windows import WindowShape
from robomimic_ddp.data.rlds.pipeline.images import resize_frames
from tests.rlds.conftest import (
    ACTIONS,
    CAMERAS,
    FAILED,
    KEPT,
    LENGTHS,
    STATES,
    WORDLESS,
    made_up_episode,
)
from tests.rlds.reference import all_windows, raw_action


def delivered_in_a_pass(dataset, batch_size=4, world_size=1):
    """{index: window} of the first pass, over all ranks."""
    rows = {}
    for rank in range(world_size):
        for batch in make_loader(dataset, batch_size, rank, world_size, 0):
            for row, index in enumerate(batch["index"].tolist()):
                assert index not in rows
                rows[index] = {
                    "obs": {key: value[row].numpy() for key, value in batch["obs"].items()},
                    "actions": batch["actions"][row].numpy(),
                    "pad_mask": batch["pad_mask"][row].numpy(),
                    "language": batch["language"][row],
                }
    return rows


def normalised(dataset, raw):
    """The reference's actions as float32, by the statistics that the dataset gives the host."""
    stats = dataset.get_action_normalization_stats()
    scale = np.concatenate([entry["scale"][0] for entry in stats.values()])
    offset = np.concatenate([entry["offset"][0] for entry in stats.values()])
    return (raw - offset) / scale


SHAPES = [WindowShape(2, 16, True, True), WindowShape(3, 3, False, False)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_equal_the_slow_reference(load, stored, shape):
    """All shapes, as arithmetic: order/test_window_bounds.py."""
    keys, everything = CAMERAS + STATES, dict(cameras=CAMERAS, states=STATES)
    train, valid = load(**everything, **vars(shape), batch_size=1)
    assert valid is None
    rows = delivered_in_a_pass(train, batch_size=1)
    reference = all_windows(stored.episodes, shape, keys, ACTIONS)
    expected = {i for i, row in enumerate(reference) if row["episode"] in KEPT}
    assert set(rows) == expected and len(train) == len(expected) > 20
    require_equal(train, rows, reference)


def require_equal(train, rows, reference):
    """Every delivered window is the reference's, element by element."""
    keys = [*train.fields.images, *train.fields.low_dim]
    for index, row in rows.items():
        truth = reference[index]
        assert list(row["obs"]) and set(row["obs"]) == set(keys)
        for key in CAMERAS:
            assert row["obs"][key].dtype == np.uint8
            assert np.array_equal(row["obs"][key], truth["obs"][key]), (index, key)
        for key in STATES:
            assert row["obs"][key].dtype == np.float32
            assert np.array_equal(row["obs"][key], truth["obs"][key].astype(np.float32))
        assert isinstance(row["language"], str)
        wanted = normalised(train, truth["actions"])
        assert row["actions"].dtype == np.float32
        assert np.allclose(row["actions"], wanted, atol=2e-6)
        assert np.abs(row["actions"]).max() <= 1
        assert np.array_equal(row["pad_mask"], truth["pad_mask"])
        assert row["language"] == truth["language"]


def test_data_without_any_instruction_are_read(config_of):
    config = config_of([made_up_episode(number) for number in WORDLESS])
    train, _ = datasets_from_config(config, config.all_obs_keys)
    assert len(train.rows) == len(WORDLESS)


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"success_only": False}, WORDLESS),
        ({"skip_unlabeled": False}, FAILED),
        ({"subsample_length": 3, "success_only": False, "skip_unlabeled": False}, set()),
    ],
    ids=str,
)
def test_filters_and_subsampling_equal_the_slow_reference(load, stored, changes, left_out):
    """With a window of three frames."""
    shape = WindowShape(3, 4, True, True)
    train, _ = load(cameras=CAMERAS, states=STATES, **vars(shape), batch_size=1, **changes)
    rows = delivered_in_a_pass(train, batch_size=1)
    reference = all_windows(stored.episodes, shape, CAMERAS + STATES, ACTIONS)
    most, starts = changes.get("subsample_length", 1000), np.cumsum([0, *LENGTHS])
    for number, length in enumerate(LENGTHS):
        found = sorted(i - starts[number] for i in rows if reference[i]["episode"] == number)
        if number in left_out:
            assert not found
        elif length <= most:
            assert found == list(range(length))
        else:  # spread evenly over the episode
            assert len(found) == most
            assert set(np.diff(found)) <= {length // most, -(-length // most)}
    require_equal(train, rows, reference)


def test_the_hosts_own_hdf5_dataset_delivers_the_same(load, stored, tmp_path):
    """The episodes as HDF5 through robomimic's SequenceDataset: the contract in its own words."""
    h5py = pytest.importorskip("h5py")
    host = pytest.importorskip("robomimic.utils.dataset")
    import robomimic.utils.obs_utils as ObsUtils

    ObsUtils.initialize_obs_modality_mapping_from_dict({"rgb": ["camera"], "low_dim": ["state"]})
    place = "robot_state/cartesian_position"
    with h5py.File(tmp_path / "same.hdf5", "w") as file:
        for demo, number in enumerate(KEPT):
            steps = stored.episodes[number]["steps"]
            group = file.create_group(f"data/demo_{demo}")
            group.attrs["num_samples"] = len(steps)
            seen = [step["observation"] for step in steps]
            group["obs/camera"] = np.stack([s["exterior_image_1_left"] for s in seen])
            group["obs/state"] = np.stack([s["cartesian_position"] for s in seen])
            group["actions"] = np.stack([raw_action(step, ACTIONS) for step in steps])
    theirs = host.SequenceDataset(
        str(tmp_path / "same.hdf5"), ("camera", "state"), ("actions",), ("actions",),
        {"actions": {"normalization": "min_max"}}, frame_stack=2, seq_length=16,
        load_next_obs=False, get_pad_mask=True, hdf5_use_swmr=False,
    )  # fmt: skip
    train, _ = load(cameras=CAMERAS[:1], states=STATES[:1], frame_stack=2, seq_length=16)
    rows = delivered_in_a_pass(train, batch_size=1)
    assert len(rows) == len(theirs) == len(train)
    ours_stats = train.get_action_normalization_stats()
    their_stats = theirs.get_action_normalization_stats()["actions"]
    for name in ("scale", "offset"):
        joined = np.concatenate([entry[name] for entry in ours_stats.values()], axis=1)
        assert np.allclose(joined, their_stats[name], rtol=1e-6, atol=1e-7)
    for number, index in enumerate(sorted(rows)):
        ours, truth = rows[index], theirs[number]
        assert np.array_equal(ours["obs"][CAMERAS[0]], truth["obs"]["camera"][:2])
        state = truth["obs"]["state"][:2].astype(np.float32)
        assert np.array_equal(ours["obs"][place], state)
        assert np.allclose(ours["actions"], truth["actions"], atol=2e-6)
        assert np.array_equal(ours["pad_mask"], truth["pad_mask"][:, 0])


def test_pictures_are_resized_as_hosts_do(load, stored):
    """That pixels are TensorFlow's: test_resampling.py."""
    train, _ = load(cameras=CAMERAS[:1], observation={"image_dim": [11, 13]})
    reference = all_windows(stored.episodes, train.shape, CAMERAS[:1], ACTIONS)
    for index, row in delivered_in_a_pass(train).items():
        full = reference[index]["obs"][CAMERAS[0]]
        wanted = resize_frames(full, (11, 13))
        assert row["obs"][CAMERAS[0]].shape == (2, 11, 13, 3)
        assert np.array_equal(row["obs"][CAMERAS[0]], wanted)


def test_actions_beyond_the_limit_are_cut_off_at_both_ends(load):
    train, _ = load(cameras=())
    limit = np.full_like(train.settings.limit, 0.25)
    vars(train)["settings"] = replace(train.settings, limit=limit)
    actions = next(iter(make_loader(train, 16, 0, 1, 0)))["actions"]
    assert (actions.min(), actions.max()) == (-0.25, 0.25)


def test_states_alone_need_no_camera(load):
    train, _ = load(cameras=())
    loader = make_loader(train, 4, 0, 1, 0)
    batch = next(iter(loader))
    assert set(batch["obs"]) == set(STATES[:2])
    assert loader.frames_decoded == loader.frames_delivered == loader.frames_prefetched == 0
