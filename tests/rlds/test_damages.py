"""Every row of the table of bad data, with and without ddp.skip_corrupt, on one rank and on two."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

import numpy as np
import pytest
import torch

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.loaders import base as loader_module
from robomimic_ddp.data.rlds.loaders import buffer_memory
from robomimic_ddp.data.rlds.loaders import diagnose as damage_module
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline import skip_corrupt
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import CAMERAS, LENGTHS, STATES, WORDLESS, made_up_episode
from tests.rlds.damages import DAMAGES, Damage, files_of
from tests.tiers import slow_but

pytestmark = pytest.mark.bad_input
BY_NAME = {damage.name: damage for damage in DAMAGES}


@pytest.fixture
def damaged(copy, make_config, tmp_path):
    """`damaged(damage, skip)`: the train set, or the error of making it."""

    def make(damage: Damage, skip: bool):
        config = make_config(
            data_path=str(copy.parent.parent),
            data_cache_dir=str(tmp_path / "cache"),
            cameras=CAMERAS[:1],
            states=STATES[:1],
            frame_stack=2,
            success_only=False,
        )
        if not damage.late:
            damage.make(copy)
        train, _ = host_datasets.datasets_from_config(
            config, config.all_obs_keys, skip_corrupt=skip
        )
        if damage.late:
            damage.make(copy)
        return train

    return make


def rows(loader) -> list[list[int]]:
    """The windows of each batch of a pass."""
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_it_is_one_clear_error(damaged, damage):
    if not damage.words:
        return  # see below: it trains without it
    with pytest.raises(DataError) as caught:
        rows(make_loader(damaged(damage, False), 3, 0, 1, 5))
    text = str(caught.value)
    assert not [word for word in damage.words if word not in text], text
    assert "again" in text or "end in NaN" in text


def lost_windows(train, damage) -> set[int]:
    """The numbers in `train` of the windows that are replaced."""
    wanted = {(n, step) for n, steps in damage.replaced.items() for step in steps}
    places = [(train.episode_of(w), w) for w in range(train.windows_of_all)]
    kept = [n for n in range(len(LENGTHS)) if n not in damage.lost or damage.name == NO_STEP]
    return {window for (row, step), window in places if (kept[row], step) in wanted}


NO_STEP = "episode of no step"
"""Its episode stays in the index, with no window."""


ALIKE = {"cut-off file", "file still being copied", "wrong feature type"}
"""Found with the index, as corrupt records, missing files and NaN are."""
WHEN_DECODED = {
    "a record without a camera",
    "a frame that is no picture",
    "a file that is removed later",
}
"""Found when a window is decoded, as half a picture and a record that is damaged later are."""


@pytest.mark.parametrize(
    "damage",
    slow_but({*BY_NAME} - ALIKE - WHEN_DECODED, DAMAGES, name_of=attrgetter("name")),
    ids=attrgetter("name"),
)
def test_under_skip_corrupt_the_rest_is_trained_on_and_counted(damaged, damage, capsys):
    skip = bool(damage.words)
    train = damaged(damage, skip)
    lengths = [0 if n in damage.lost else LENGTHS[n] for n in range(len(LENGTHS))]
    used = [n for n in range(len(LENGTHS)) if n not in WORDLESS]
    assert len(train) == sum(lengths[n] for n in used)
    batch, world = 4, 2
    loaders = [make_loader(train, batch, rank, world, 5) for rank in range(world)]
    passes = [[rows(loader) for loader in loaders] for _ in range(2)]
    for one in passes:
        assert len(one[0]) == len(one[1]), "ranks take equal numbers of batches"
        assert all(len(row) == batch for rank in one for row in rank)
    assert np.isfinite(train.get_action_stats()["action/abs_pos"]["mean"]).all()
    said, lost = capsys.readouterr().err, lost_windows(train, damage)
    assert not [word for word in damage.said if word not in said], said
    seen = Counter(window for one in passes for rank in one for row in rank for window in row)
    assert not lost & set(seen)
    plain = make_loader(train, batch, 0, world, 5)
    for number, row in enumerate(passes[0][0] if skip and lost else []):
        require_replaced(row, planned(plain, batch, number), lost)
    counted = sum(loader.windows_replaced for loader in loaders)
    assert counted >= len(lost) and bool(counted) == bool(lost)
    if skip:
        assert loaders[0].settled_frames()["windows_replaced"] == loaders[0].windows_replaced
        assert "ddp.skip_corrupt=true" in said
    (line,) = buffer_memory.lines(loaders[0], 1, 0)  # of the plan, whatever is missing
    assert line.startswith("shuffle buffers: ")


def planned(loader, batch: int, number: int) -> list[int]:
    """The windows of batch `number`, by the plan alone."""
    plan = loader._plan_of(0)
    left = np.concatenate([plan.block(n).leaving[:, 1] for n in range(plan.blocks)])
    return left[number * batch : (number + 1) * batch].tolist()


def require_replaced(row: list[int], plan: list[int], lost: set[int]) -> None:
    """Each lost window's row is the batch's next window that is not lost."""
    if set(plan) <= lost:
        assert len(set(row)) == 1
        return
    for place, window in enumerate(plan):
        while plan[place % len(plan)] in lost:
            place += 1
        assert row[plan.index(window)] == plan[place % len(plan)]


def test_where_nothing_of_a_batch_can_be_read_the_ranks_next_window_comes(damaged, monkeypatch):
    """Batches of one window."""
    damage = BY_NAME["a record that is damaged later"]
    train = damaged(damage, True)
    lost = lost_windows(train, damage)
    loaders = (make_loader(train, 1, rank, 4, 5) for rank in range(4))
    loader = next(one for one in loaders if len(lost & set(planned(one, len(one), 0))) > 3)
    brought: list[int] = []
    monkeypatch.setattr(
        loader_module, "moved", lambda batch, _: brought.append(batch["index"][0].item()) or batch
    )
    loader._device = torch.device("cpu")
    stream = [row[0] for row in rows(loader)]
    wanted = [row[0] for row in (planned(loader, 1, n) for n in range(len(stream)))]
    assert len(lost & set(wanted)) > 3
    for place, window in enumerate(wanted):
        later = [w for w in wanted[place:] if w not in lost]
        if later:
            assert stream[place] == later[0], (place, window)
    assert not lost & set(stream)
    assert brought == stream, "on a GPU filled batches go to where the others are"


def test_a_large_data_set_is_not_read_for_the_damaged_record(damaged, monkeypatch):
    """Ranks wait for the end of the job meanwhile."""
    train = damaged(BY_NAME["a record that is damaged later"], False)
    monkeypatch.setattr(damage_module, "SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(damage_module, "SEARCHED_BYTES", 0)
    with pytest.raises(DataError, match="stats CONFIG --cache NEW_FOLDER") as caught:
        rows(make_loader(train, 3, 0, 1, 5))
    assert "DataLossError" in str(caught.value)


def test_the_search_begins_with_what_leaves_next(damaged):
    train = damaged(Damage("none", lambda folder: None), False)
    loader = make_loader(train, 3, 0, 1, 5)
    for number in range(len(loader)):
        soon = [train.episode_of(window)[0] for window in planned(loader, 3, number)]
        found = list(loader._suspects())
        assert set(found[: len(set(soon))]) == set(soon)
        loader._batches += 1


def test_nothing_that_can_be_read_is_an_error(damaged, copy, monkeypatch):
    monkeypatch.setattr(skip_corrupt, "MOST_SEARCHED", 100)
    train = damaged(Damage("none", lambda folder: None), True)
    for file in files_of(copy):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="none of the next 100 windows can be read, so"):
        rows(make_loader(train, 4, 0, 1, 5))


def test_validation_is_filled_too(copy, make_config, tmp_path, capsys):
    config = make_config(
        data_path=str(copy.parent.parent),
        data_cache_dir=str(tmp_path / "cache"),
        cameras=CAMERAS[:1],
        experiment={"validate": True},
        validation_fraction=0.5,
    )
    train, valid = host_datasets.datasets_from_config(
        config, config.all_obs_keys, skip_corrupt=True
    )
    file = valid.source.files[valid.index.file[valid.rows[0]]]
    file.unlink()
    loader = make_loader(valid, 4, 0, 1, 0)
    seen = [window for row in rows(loader) for window in row]
    assert len(seen) == len(valid) and f"{file}: episode" in capsys.readouterr().err
    held = {valid.index.file[valid.episode_of(window)[0]] for window in seen}
    assert valid.index.file[valid.rows[0]] not in held


@pytest.fixture
def of_episodes(config_of):
    """`of_episodes(episodes)`: the train set of these."""

    def make(episodes):
        config = config_of(episodes, cameras=())
        return host_datasets.datasets_from_config(config, config.all_obs_keys)[0]

    return make


def test_fewer_episodes_than_ranks_and_an_episode_of_one_step(of_episodes):
    train = of_episodes([made_up_episode(0), made_up_episode(4)])  # 1 and 9 steps
    loaders = [make_loader(train, 1, rank, 5, 0) for rank in range(5)]
    seen = [window for loader in loaders for row in rows(loader) for window in row]
    assert sorted(seen) == list(range(10))
    with pytest.raises(DataError, match="gives 10 windows to a pass, a step needs 12"):
        make_loader(train, 1, 0, 12, 0)


def test_an_action_that_never_changes_is_delivered_as_zero(of_episodes):
    episodes = [made_up_episode(4), made_up_episode(5)]
    for step in (step for episode in episodes for step in episode["steps"]):
        step["action_dict"]["gripper_position"][0] = 0.3
    train = of_episodes(episodes)
    batch = next(iter(make_loader(train, 8, 0, 1, 0)))
    assert (batch["actions"][..., -1].abs() < 1e-6).all() and batch["actions"].isfinite().all()
    assert batch["actions"][..., 0].abs().max() > 0.1
    stats = train.get_action_normalization_stats()["action/gripper_position"]
    assert stats["offset"][0, 0] == pytest.approx(0.3) and np.isfinite(stats["scale"]).all()
