"""NaN, infinity, actions out of range and empty episodes in RLDS data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import ACTIONS, made_up_episode
from tests.rlds.damages import no_steps, rewrite

pytestmark = pytest.mark.bad_input


@pytest.fixture
def error_of(config_of):
    """`error_of(change, **train)`: what loading says of episodes 4, 5, 6 after `change(steps)` of
    the middle one.
    """

    def read(change, **train) -> str:
        episodes = [made_up_episode(number) for number in (4, 5, 6)]
        change(episodes[1]["steps"])
        config = config_of(episodes, 3, **train)
        with pytest.raises(DataError) as caught:
            host_datasets.datasets_from_config(config, config.all_obs_keys)
        return str(caught.value)

    return read


def put(place: str, value: float):
    """Sets one number of step 2 at `place`."""

    def change(steps: list) -> None:
        group, name = place.split("/")
        steps[2][group][name][0] = value

    return change


@pytest.mark.parametrize(
    ("place", "value", "kind"),
    [
        ("action_dict/cartesian_position", np.nan, "action"),
        ("action_dict/gripper_position", np.inf, "action"),
        ("action_dict/cartesian_position", -np.inf, "action"),
        ("observation/gripper_position", np.nan, "state"),
        ("observation/cartesian_position", np.inf, "state"),
    ],
)
def test_no_number_in_the_data_names_the_episode(error_of, place, value, kind):
    text = error_of(put(place, value))
    assert "1 episodes of" in text and f"NaN or infinite {kind}" in text
    assert "tfrecord-00001" in text and "byte 0" in text


@pytest.mark.parametrize("method", [None, "gaussian"])
def test_actions_out_of_range_name_the_key_and_the_remedy(error_of, method):
    config = {key: {"normalization": method} for key in ACTIONS}
    text = error_of(lambda steps: None, action_config=config)
    assert "'action/abs_pos' ranges from -" in text
    assert 'normalization to "min_max"' in text


@pytest.fixture
def emptied(config_of):
    """`emptied(*which)`: a config of episodes 4, 5, 6 of which those have no step."""

    def make(*which: int):
        episodes = [made_up_episode(number) for number in (4, 5, 6)]
        config = config_of(episodes, 3, skip_unlabeled=False)
        for number in which:
            rewrite(number, 0, no_steps)(Path(config.train.data_path) / "few" / "1.0.0")
        return config

    return make


def test_an_empty_episode_is_left_out(emptied):
    config = emptied(1)
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    assert train.rows.tolist() == [0, 2]
    stats = train.get_action_stats()["action/abs_pos"]
    assert np.isfinite(stats["min"]).all() and np.isfinite(stats["max"]).all()


def test_only_empty_episodes(emptied):
    config = emptied(0, 1, 2)
    with pytest.raises(DataError, match="none of the 3 episodes.*too short"):
        host_datasets.datasets_from_config(config, config.all_obs_keys)
