"""Every row of the table of bad data, with and without ddp.skip_corrupt."""

from __future__ import annotations

import shutil
from operator import attrgetter

import numpy as np
import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.loaders import buffer_memory
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import CAMERAS, LENGTHS, STATES, WORDLESS, made_up_episode
from tests.rlds.damages import DAMAGES, Damage
from tests.rlds.loading import one_pass

pytestmark = pytest.mark.bad_input


@pytest.fixture
def damaged(copy, make_config, tmp_path):
    """`damaged(damage, skip_corrupt)`: the train set, or the error of making it."""

    def make(damage: Damage, skip_corrupt: bool = False):
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
            config, config.all_obs_keys, skip_corrupt=skip_corrupt
        )
        if damage.late:
            damage.make(copy)
        return train

    return make


def require_named(damage: Damage, text: str) -> None:
    """The error has the words of `damage`, and says what to do."""
    assert not [word for word in damage.words if word not in text], text
    assert "again" in text or "end in NaN" in text


@pytest.mark.parametrize(
    "damage", [d for d in DAMAGES if d.words and d.lost], ids=attrgetter("name")
)
def test_it_is_one_clear_error(damaged, damage):
    with pytest.raises(DataError) as caught:
        list(make_loader(damaged(damage), 3, 0, 1, 5))
    require_named(damage, str(caught.value))


def require_rest(train, damage: Damage) -> None:
    """Two ranks train on all episodes but the lost ones, in step."""
    used = [n for n in range(len(LENGTHS)) if n not in WORDLESS | {*damage.lost, *damage.unread}]
    assert len(train) == sum(LENGTHS[n] for n in used)
    loaders = [make_loader(train, 4, rank, 2, 5) for rank in range(2)]
    for _ in range(2):
        one, two = ([batch["index"].tolist() for batch in loader] for loader in loaders)
        assert len(one) == len(two) and {len(rows) for rows in one + two} == {4}
    stats = train.get_action_stats()["action/abs_pos"]
    assert all(np.isfinite(stats[name]).all() for name in ("mean", "min", "max"))
    (line,) = buffer_memory.lines(loaders[0], 1, 0)  # of the plan, whatever is missing
    assert line.startswith("shuffle buffers: ")


FEW = ("missing file", "nan state", "episode of no step")


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d.name in FEW], ids=attrgetter("name"))
def test_an_episode_that_is_damaged_at_indexing_is_left_out_and_counted(damaged, damage, capsys):
    train = damaged(damage, skip_corrupt=bool(damage.words))
    require_rest(train, damage)
    said = capsys.readouterr().err
    assert not [word for word in damage.said if word not in said], said
    assert ("ddp.skip_corrupt=true" in said) == bool(damage.words)


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d.unread], ids=attrgetter("name"))
def test_what_the_index_has_not_found_is_an_error_that_says_what_to_do(damaged, damage, tmp_path):
    train = damaged(damage, skip_corrupt=True)
    loader = make_loader(train, 3, 0, 1, 5)
    with pytest.raises(DataError) as caught:
        list(loader)
    text = str(caught.value)
    require_named(damage, text)
    assert "prepare-data --skip-corrupt" in text  # see test_prepare_data.py
    assert "delete the dataset's index from train.data_cache_dir" in text
    if not damage.late:
        return
    loader.close()
    shutil.rmtree(tmp_path / "cache")
    require_rest(damaged(Damage("none", lambda folder: None), skip_corrupt=True), damage)


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
    assert sorted(one_pass(*loaders)) == list(range(10))
    with pytest.raises(DataError, match="has 10 windows in a pass, but a step needs 12"):
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
