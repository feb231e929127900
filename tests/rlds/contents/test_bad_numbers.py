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


def test_an_infinite_action_names_the_episode(error_of):
    """As a NaN state does: reading/test_damages.py."""

    def change(steps: list) -> None:
        steps[2]["action_dict"]["gripper_position"][0] = -np.inf

    text = error_of(change)
    assert "1 episodes of" in text and "NaN or infinite action" in text
    assert "tfrecord-00001" in text and "byte 0" in text


def test_actions_out_of_range_name_the_key_and_the_remedy(error_of):
    config = {key: {"normalization": None} for key in ACTIONS}
    text = error_of(lambda steps: None, action_config=config)
    assert "'action/abs_pos' ranges from -" in text
    assert 'normalization to "min_max"' in text


def test_only_empty_episodes(config_of):
    config = config_of([made_up_episode(4), made_up_episode(5)], 2, skip_unlabeled=False)
    for file in range(2):
        rewrite(file, 0, no_steps)(Path(config.train.data_path) / "few" / "1.0.0")
    with pytest.raises(DataError, match="none of the 2 episodes.*too short"):
        host_datasets.datasets_from_config(config, config.all_obs_keys)
