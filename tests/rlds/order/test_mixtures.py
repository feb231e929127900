"""Two datasets of different sizes as one: shares, passes, positions, normalisation."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.loaders.remote import SharedCounters
from robomimic_ddp.data.rlds.mixture_dataset import RLDSMixture
from robomimic_ddp.data.rlds.pipeline.engine import Batches
from robomimic_ddp.data.rlds.pipeline.settings import PREFETCHED_BATCHES
from robomimic_ddp.data.rlds.pipeline.shared import Pool
from tests.rlds.conftest import CAMERAS, FIRST, STATES, WEIGHTS
from tests.rlds.loading import batches, one_pass


@pytest.fixture
def mixed(load, small):
    """`mixed(**as load)`: the train mixture, and the validation one."""

    def make(weights=WEIGHTS, **changes):
        changes = {"cameras": CAMERAS[:1], "states": STATES[:1], **changes}
        return load(dataset_names=["made_up", "small"], sample_weights=weights, **changes)

    return make


def test_shares_follow_the_weights_and_passes_are_exact_for_each(mixed):
    mixture, _ = mixed()
    large, tiny = mixture.datasets
    said, times = repr(mixture), 0.75 * len(mixture) / len(tiny)
    assert f"75.0% of the samples from {len(tiny)} windows: each comes {times:.2f} times" in said
    assert times > 1
    loaders = [make_loader(mixture, 4, rank, 2, 7) for rank in range(2)]
    assert {len(loader) for loader in loaders} == {len(mixture) // 8}
    count = 2 * len(mixture) // 8
    rows = [batches(loader, count) for loader in loaders]
    for number in range(count):
        shares = {sum(index >= FIRST for index in row[number]) for row in rows}
        assert shares == {3}, "one window of the large, three of the small, on every rank"
    seen = [index for row in rows for batch in row for index in batch]
    for dataset, chosen in (
        (large, [index for index in seen if index < FIRST]),
        (tiny, [index for index in seen if index >= FIRST]),
    ):
        times = Counter(chosen)
        whole, more = divmod(len(chosen), len(dataset))
        # Ranks are within one window of each other, so each window comes as often, or once more;
        # at a pass's end a rank may be a window ahead in the next one.
        assert len(times) == len(dataset) or whole == 0
        assert set(times.values()) <= {whole - 1, whole, whole + 1}
        early = sum(count > whole for count in times.values())
        late = sum(count < whole for count in times.values()) if whole else 0
        assert early - late == more and late < 2
    frames = count * 4 * mixture.datasets[0].shape.frame_stack
    assert loaders[0].frames_delivered == loaders[0].settled_frames()["frames_delivered"] == frames
    assert loaders[0].samples_delivered == 4 * count
    assert loaders[0].frames_decoded > 0


def test_an_iterator_of_a_mixture_ends_with_the_pass(mixed):
    loader = make_loader(mixed()[0], 4, 0, 2, 7)
    next(iter(loader))
    lengths = [len(list(loader)) for _ in range(3)]
    assert lengths == [len(loader) - 1, len(loader), len(loader)]


def test_a_mixture_numbers_windows_over_all_datasets_and_is_else_as_the_first():
    datasets = [
        SimpleNamespace(
            windows_of_all=count, role="train", options=[count], get_sizes=len, name=str(count)
        )
        for count in (5, 7, 9)
    ]
    mixture = RLDSMixture(datasets, [1, 1, 2])
    assert mixture.is_rlds and mixture.first_index == [0, 5, 12]
    assert mixture.weights == [0.25, 0.25, 0.5]
    assert (mixture.role, mixture.options, mixture.name) == ("train", [5], "5, 7, 9")
    datasets[0].get_sizes = sum
    assert mixture.get_sizes is sum
    assert not hasattr(mixture, "windows_of_all")


def test_a_members_share_of_threads_and_buffer_is_its_weight(mixed):
    mixture, _ = mixed(shuffle_buffer_size=40)
    members = make_loader(mixture, 4, 0, 2, 7, cores=8).members
    assert [member.batching.threads for member in members] == [2, 6]
    assert [member.batching.shuffle_buffer for member in members] == [5, 15]


def test_a_mixture_of_one_batch_is_at_its_end_after_it(mixed):
    mixture, _ = mixed()
    whole, resumed = (make_loader(mixture, len(mixture), 0, 1, 7) for _ in range(2))
    batches(whole, 1)
    resumed.seek(whole.position(), 1, 1)
    assert len(resumed) == 1 and resumed.batches_left() == 1, "of the next pass"


def test_a_pipeline_that_is_closed_begins_again_at_its_place(mixed):
    """Of three windows a batch has one or none of the large dataset."""
    mixture, _ = mixed()
    whole, closed = (make_loader(mixture, 3, 0, 1, 7) for _ in range(2))
    expected = batches(whole, 6)
    before = batches(closed, 2)
    for member in closed.members:
        member.close()
    assert before + batches(closed, 4) == expected


def test_a_batch_is_pinned_once_when_its_parts_are_joined(mixed, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(id(self)) or self)
    mixture, _ = mixed()
    batch = next(iter(make_loader(mixture, 4, 0, 1, 7, pin_memory=True)))
    tensors = [one for one in (*batch.values(), *batch["obs"].values()) if torch.is_tensor(one)]
    assert len(tensors) > 4 and sorted(map(id, tensors)) == sorted(pinned)


def test_all_are_normalised_by_the_steps_of_all(mixed, load):
    mixture, _ = mixed()
    assert len({repr(d.get_action_normalization_stats()) for d in mixture.datasets}) == 1
    alone = [load(dataset_names=[name])[0].get_action_stats() for name in ("made_up", "small")]
    together = mixture.get_action_stats()
    for key, stats in together.items():
        one, two = (each[key] for each in alone)
        n = one["n"] + two["n"]
        assert stats["n"] == n
        mean = (one["mean"] * one["n"] + two["mean"] * two["n"]) / n
        assert np.allclose(stats["mean"], mean)
        square = sum(each["sqdiff"] + each["n"] * each["mean"] ** 2 for each in (one, two))
        assert np.allclose(stats["sqdiff"], square - n * mean**2)
        assert np.array_equal(stats["min"], np.minimum(one["min"], two["min"]))
        assert np.array_equal(stats["max"], np.maximum(one["max"], two["max"]))
    batch = next(iter(make_loader(mixture, 8, 0, 1, 0)))
    assert batch["actions"].shape == (8, 17, 10) and batch["actions"].abs().max() <= 1
    assert len(batch["language"]) == 8
    assert batch["obs"][CAMERAS[0]].shape == (8, 2, 24, 40, 3)  # the small one's are 16 x 20
    assert str(batch["obs"][CAMERAS[0]].dtype) == "torch.uint8"


def test_a_dataset_that_is_made_by_itself_is_normalised_by_its_own_steps(load):
    train, _ = load()
    read = (train.source, train.fields, train.index, train.rows, train.all_rows)
    alone = RLDSDataset(*read, train.shape, train.size, train.action_config, train.options)
    assert repr(alone.get_action_stats()) == repr(train.get_action_stats())


def test_the_same_ranks_resume_at_the_window(mixed):
    """Beyond passes of both sets; test_positions.py has each set's place."""
    mixture, _ = mixed()
    whole, resumed = (make_loader(mixture, 4, 1, 2, 7) for _ in range(2))
    batches(whole, 40)
    position = json.loads(json.dumps(whole.position()))
    assert position["kind"] == "mixture" and len(json.dumps(position)) < 2_000
    assert resumed.seek(position, 2, 1).count("resumes after") == 2
    assert batches(resumed, 20) == batches(whole, 20)
    assert resumed.position() == whole.position()


def test_other_ranks_batch_and_weights_take_what_is_left_of_each_pass(mixed):
    mixture, _ = mixed()
    loaders = [make_loader(mixture, 3, rank, 2, 7) for rank in range(2)]
    seen = [index for loader in loaders for row in batches(loader, 11) for index in row]
    position = loaders[0].position()
    assert loaders[1].position() == position
    alone = make_loader(mixture, 3, 0, 1, 7).seek(position, 2, 1)
    assert alone.count("split again over 1 rank") == 2 and "1 ranks" not in alone
    other, _ = mixed(weights=[3.0, 1.0])
    loaders = [make_loader(other, 4, rank, 3, 7) for rank in range(3)]
    for loader in loaders:
        assert loader.seek(position, 2, 1).count("split again over 3 ranks") == 2
        assert loader.batches_left() == len(loader) - 11 * 3 * 2 // (4 * 3)
    rows = [batches(loader, 5) for loader in loaders]
    for number in range(5):
        assert {sum(index < FIRST for index in row[number]) for row in rows} == {3}
    seen += [index for row in rows for batch in row for index in batch]
    large = [index for index in seen if index < FIRST]
    assert len(large) == len(set(large)) < len(mixture.datasets[0])  # still the first pass
    times = Counter(index for index in seen if index >= FIRST)
    assert max(times.values()) - min(times.values()) <= 2


def test_a_dataset_that_joins_starts_and_one_of_weight_zero_is_not_read(mixed, load):
    alone, _ = load(dataset_names=["made_up", "small"], sample_weights=[1, 0], cameras=CAMERAS[:1])
    assert len(alone) == len(load(cameras=CAMERAS[:1])[0]) and not hasattr(alone, "datasets")
    mixture, _ = mixed()
    loader = make_loader(mixture, 3, 0, 1, 7)
    assert "begins" in loader.seek(make_loader(alone, 3, 0, 1, 7).position(), 1, 1)


def test_validation_holds_each_window_once_over_ranks(mixed):
    _, valid = mixed(experiment={"validate": True}, validation_fraction=0.3, batch_size=4)
    loaders = [make_loader(valid, 4, rank, 2, 0) for rank in range(2)]
    seen = one_pass(*loaders)
    assert len(seen) == len(set(seen)) == len(valid) == sum(map(len, valid.datasets))
    assert {index >= FIRST for index in seen} == {True, False}
    parts = [loader.limited(2) for loader in loaders]
    assert loaders[0].limited(2) is parts[0]
    some = one_pass(*parts)
    assert len(some) == len(set(some)) == 8


def test_batches_of_a_rare_dataset_are_planned_one_by_one(mixed):
    """Its windows are many batches apart: planning a block of them would take minutes."""
    rare = make_loader(mixed([1, 1e-5])[0], 4, 0, 1, 7).members[1]
    planned = itertools.count()
    plan = (rare.dataset.settings, rare._plan_of, None, rare.batching, (0, 0))
    read = Batches(*plan, lambda: (1 for _ in planned), SharedCounters(), Pool())
    assert [len(next(read).language) for _ in range(3)] == [1, 1, 1]
    read.close()
    assert next(planned) <= 3 + PREFETCHED_BATCHES
