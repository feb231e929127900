"""The Lift demo without its simulator: the scripted expert, the configuration, the summary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.records import history
from scripts.demo import lift, summary
from scripts.demo import lift_data as expert

FAR = np.array([-0.10, 0.02, 1.01])
CUBE = np.array([0.02, -0.01, 0.82])


def drive(hand: np.ndarray = FAR, noise: float = 0.0, opening: float = 0.042, steps: int = 90):
    """The expert moves a hand, which lags behind, and fingers that the cube keeps 0.042 apart.

    Yields hand and cube before each move, what the expert wanted, and the opening.
    """
    random, phase = np.random.default_rng(0), expert.OPENING
    hand, cube, before = hand.copy(), CUBE.copy(), opening
    for _ in range(steps):
        action, phase = expert.command(hand, cube, opening, before - opening, phase)
        yield hand.copy(), cube.copy(), action, opening
        before, around = opening, np.linalg.norm(hand - cube) < 0.02
        least = 0.042 if around else 0.0
        opening = max(least, opening - 0.006) if action[-1] > 0 else min(0.08, opening + 0.006)
        moved = expert.noisy(action, random, noise)[:3] * expert.STEP * 0.25
        hand += moved
        cube += moved if around and opening == before == 0.042 else 0.0


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_goes_over_the_cube_down_closes_and_lifts(noise: float) -> None:
    moves = list(drive(noise=noise))
    first = next(number for number, (_, _, action, _) in enumerate(moves) if action[-1] == 1.0)
    hand, cube, _, opening = moves[first]
    assert np.linalg.norm((hand - cube)[:2]) < expert.NEAR and opening > expert.OPEN
    assert abs(hand[2] - cube[2]) < expert.NEAR
    for hand, cube, _, _ in moves[:first]:  # never beside the cube at its height
        assert np.linalg.norm((hand - cube)[:2]) < 0.03 or hand[2] > cube[2] + 0.03
    rising = [action[2] for _, _, action, _ in moves[first:] if action[-1] == 1.0]
    assert rising[0] == 0.0 and rising[-1] == 1.0  # the fingers grasp the cube before it is lifted
    assert moves[-1][1][2] > CUBE[2] + 0.1


def test_actions_are_what_the_host_takes() -> None:
    moves = [expert.noisy(action, np.random.default_rng(0), 2.0) for _, _, action, _ in drive()]
    assert np.abs(moves).max() == 1.0 and np.shape(moves)[1] == expert.ACTION_DIM
    assert {action[-1] for action in moves} == {-1.0, 1.0}  # noise never moves the gripper


@pytest.mark.parametrize("algo", lift.CONFIGS)
def test_the_configuration_is_one_the_host_takes(algo: str) -> None:
    config_factory = pytest.importorskip("robomimic.config").config_factory
    given = json.loads(lift.CONFIGS[algo].read_text())
    assert given["algo_name"] == algo
    config = config_factory(given["algo_name"])
    with config.values_unlocked():
        config.update(given)  # raises for keys that the host does not declare
    (data,) = config.train.data
    assert data["lang"] is None, "without it the host loads a language model for the environment"
    if algo == "bc":
        assert config.train.seq_length == config.algo.rnn.horizon and config.algo.gmm.enabled
    else:
        assert config.train.seq_length == config.algo.horizon.prediction_horizon
        assert config.train.frame_stack == config.algo.horizon.observation_horizon
    assert tuple(config.observation.modalities.obs.low_dim) == expert.KEYS
    rollout = config.experiment.rollout
    assert rollout.enabled and config.train.num_epochs % rollout.rate == 0
    assert rollout.rate == config.train.num_epochs, "success is measured once, at the end"
    assert not config.experiment.render_video and not config.observation.modalities.obs.rgb


RESULTS = """
Epoch {} Rollouts took 1.5s (avg) with results:
Env: lift
{{
    "Horizon": 40.5,
    "Success_Rate": {}
}}
"""
LOG = f"""
rollouts: 1 episode(s) of each environment, over 2 ranks
{RESULTS.format(10, 0.5)}
rollouts: 3 episode(s) of each environment, over 2 ranks
{RESULTS.format(20, 0.75)}
"""


def test_success_is_the_last_in_the_log() -> None:
    assert summary.success_rate(LOG) == 0.75
    with pytest.raises(DataError, match="rollouts"):
        summary.success_rate("rollout: env=Lift")


def test_every_value_of_the_summary_is_the_runs(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for run, log in ((before, RESULTS.format(1, 0.0)), (after, LOG)):
        (run / "logs").mkdir(parents=True)
        (run / "logs" / "log.txt").write_text(log)
    plan = {"mode": "ddp", "backend": "gloo", "world_size": 2, "samples_per_step": 8}
    record = {"plan": plan, "learning_rates": [[0.1, 0.1]]}
    (after / "ddp.json").write_text(json.dumps(record))
    (after / "config.json").write_text(json.dumps({"experiment": {"rollout": {"n": 3}}}))
    with pytest.raises(DataError, match="cut short"):
        summary.summarise_lift(before, after, {})
    record["outcome"] = {"steps": 6, "gradients_equal": True, "noise_differs": True}
    (after / "ddp.json").write_text(json.dumps(record))
    for epoch, loss in ((1, 0.9), (2, 0.1)):
        line = {"epoch": epoch, "phase": "train", "steps": 3, "seconds": 1.0, "log": {"Loss": loss}}
        history.append(after, line)
    found = summary.summarise_lift(before, after, {"training": 12.3})
    assert tuple(found) == summary.LIFT_KEYS
    assert (found["success_before"], found["success_after"]) == (0.0, 0.75)
    assert (found["first_loss"], found["last_loss"], found["steps"]) == (0.9, 0.1, 6)
    assert found["episodes"] == 3 and found["seconds"] == {"training": 12.3}
