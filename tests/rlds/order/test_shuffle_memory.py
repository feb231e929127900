"""Shuffle buffers: divided over ranks, and the memory that the plan expects of them."""

from __future__ import annotations

import numpy as np
import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.records import read_record, record_offsets
from robomimic_ddp.data.rlds.loaders import buffer_memory
from robomimic_ddp.data.rlds.loaders.make import make_loader
from tests.rlds.conftest import CAMERAS


@pytest.fixture
def buffers(make_config):
    def make(world, **train):
        config = make_config(shuffle_buffer_size=24, **train)
        dataset, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
        return make_loader(dataset, 2, 0, world, 0)

    return make


def test_of_one_data_set(buffers):
    loader = buffers(3)
    assert [count for count, _ in loader.shuffle_buffers()] == [loader.batching.shuffle_buffer]
    assert loader.batching.shuffle_buffer == 8


def test_none_is_larger_than_a_ranks_windows(load):
    train, _ = load()
    loader = make_loader(train, 2, 0, 3, 0)
    assert train.options.shuffle_buffer_size > len(train)
    assert loader.batching.shuffle_buffer == len(train) // 3 + 1


def test_of_a_mixture(buffers, stored):
    """By weight, then over the ranks."""
    name = stored.folder.parent.name
    loader = buffers(2, dataset_names=[name] * 2, sample_weights=[3, 1])
    assert [count for count, _ in loader.shuffle_buffers()] == [9, 3]
    assert len(next(iter(loader))["index"]) == 2


def test_a_windows_bytes_are_those_of_its_encoded_frames(load, stored):
    """The expectation against the frames themselves."""
    train, _ = load(frame_stack=2)
    frames = []
    for file in train.source.files:
        for offset in record_offsets(file):
            episode = train.settings.parse(read_record(file, offset))
            for key in CAMERAS[:2]:
                frames += [len(data) for data in episode[train.fields.images[key]]]
    expected = buffer_memory.window_bytes(train)
    exact = np.mean(frames) * 2 * 2  # frames of two cameras
    assert exact < expected < 1.6 * exact + 1200


def test_the_plans_line_and_its_warning(load):
    train, _ = load()
    loader = make_loader(train, 4, 0, 2, 0)
    (line,) = buffer_memory.lines(loader, 2, 2**40)
    windows = loader.batching.shuffle_buffer
    assert line.startswith(f"shuffle buffers: {windows} windows per rank x 2 rank(s) on this node")
    _, warning = buffer_memory.lines(loader, 2, 2**16)
    assert "of this machine's 66 kB" in warning and "train.shuffle_buffer_size" in warning
    assert list(buffer_memory.lines(loader, 2, 0)) == [line], (
        "a machine that does not tell its memory"
    )
    assert list(buffer_memory.lines(object(), 2, 2**16)) == [], "a host's own loader"
