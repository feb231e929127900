"""The Lift demo without its simulator: the scripted expert, the configuration, the summary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp import history, rollouts
from robomimic_ddp.demo.lift import expert, summary, write_dataset
from robomimic_ddp.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "demo_robosuite.json"
FAR = np.array([-0.10, 0.02, 1.01])
CUBE = np.array([0.02, -0.01, 0.82])


def drive(style: expert.Style, noise: float = 0.0, steps: int = 70):
    """The expert moves a hand that goes where it is told; yields hand and action of each move."""
    random, hand, closing, opening = np.random.default_rng(0), FAR.copy(), 0, 0.08
    for _ in range(steps):
        action, closing = expert.command(hand, CUBE, opening, closing, style)
        action = expert.noisy(action, random, noise)
        yield hand.copy(), action
        opening = max(0.042, opening - 0.01) if closing else 0.08
        hand += action[:3] * expert.STEP * 0.5  # the arm lags behind its commands


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("style", [expert.Style(), expert.Style(0.5, (0.006, -0.006))])
def test_it_goes_over_the_cube_down_closes_and_lifts(style: expert.Style, noise: float) -> None:
    moves = list(drive(style, noise))
    closed = [number for number, (_, action) in enumerate(moves) if action[-1] == 1.0]
    first = closed[0]
    assert closed == list(range(first, len(moves)))  # closed once, never opened again
    aim = CUBE + [*style.aim, 0.0]
    assert np.linalg.norm((moves[first][0] - aim)[:2]) < expert.ALIGNED
    assert abs(moves[first][0][2] - CUBE[2]) < expert.LOW
    for hand, _ in moves[:first]:  # never beside the cube at its height
        assert np.linalg.norm((hand - aim)[:2]) < 2 * expert.ALIGNED or hand[2] > CUBE[2] + 0.03
    resting = [action[2] for _, action in moves[first : first + expert.CLOSING_STEPS]]
    assert np.abs(resting).max() < 0.5 + noise
    assert moves[-1][0][2] > CUBE[2] + 0.1


def test_actions_are_what_the_host_takes() -> None:
    actions = [action for _, action in drive(expert.Style(), 0.5)]
    assert np.abs(actions).max() == 1.0 and np.shape(actions)[1] == expert.ACTION_DIM
    assert {action[-1] for action in actions} == {-1.0, 1.0}  # noise never moves the gripper


def test_a_grip_that_holds_nothing_opens_and_is_tried_again() -> None:
    there = CUBE + [0.04, 0.0, 0.0]
    action, closing = expert.command(there, CUBE, 0.002, 9)
    assert closing == 0 and action[-1] == -1.0 and action[2] > 0 and action[0] < 0  # up and back
    action, closing = expert.command(CUBE, CUBE, 0.04, 0)
    assert closing == 0 and action[-1] == -1.0  # not before the fingers are open
    assert expert.command(CUBE, CUBE, 0.08, 0)[1] == 1


def test_styles_differ_some_miss_and_all_are_drawn_from_the_generator() -> None:
    styles = [expert.draw_styles(np.random.default_rng(seed)) for seed in range(200)]
    assert styles[0] == expert.draw_styles(np.random.default_rng(0)) != styles[1]
    missing = [first for first, then in styles if first != then]
    assert 0.15 < len(missing) / len(styles) < 0.35
    assert all(0.03 < abs(first.aim[0]) < 0.06 for first in missing)
    assert all(max(map(abs, then.aim)) <= 0.006 for _, then in styles)


def test_the_configuration_is_one_the_host_takes() -> None:
    config_factory = pytest.importorskip("robomimic.config").config_factory
    given = json.loads(CONFIG.read_text())
    config = config_factory(given["algo_name"])
    with config.values_unlocked():
        config.update(given)  # raises for keys that the host does not declare
    (data,) = config.train.data
    assert data["lang"] is None, "without it the host loads a language model for the environment"
    assert config.train.seq_length == config.algo.horizon.prediction_horizon
    assert config.train.frame_stack == config.algo.horizon.observation_horizon
    assert tuple(config.observation.modalities.obs.low_dim) == write_dataset.KEYS
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
rollouts: episodes of each environment over 2 ranks: rank 0: 0; rank 1: none
{RESULTS.format(10, 0.5)}
rollouts: episodes of each environment over 2 ranks: rank 0: 0, 2; rank 1: 1
{RESULTS.format(20, 0.75)}
"""


def test_episodes_and_success_are_the_last_in_the_log() -> None:
    assert summary.episodes_per_rank(LOG) == {"rank 0": 2, "rank 1": 1}
    assert summary.episodes_per_rank(LOG.splitlines()[1]) == {"rank 0": 1, "rank 1": 0}
    assert summary.success_rate(LOG) == 0.75
    for read in (summary.episodes_per_rank, summary.success_rate):
        with pytest.raises(DataError, match="rollouts"):
            read("rollout: env=Lift")


@pytest.mark.parametrize("episodes", [1, 16, 17, 50])
def test_episodes_are_counted_as_they_are_announced(
    episodes: int, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts.group, "world_size", lambda: 2)
    rollouts._announce(episodes)
    counts = summary.episodes_per_rank(capsys.readouterr().out)
    assert counts == {"rank 0": (episodes + 1) // 2, "rank 1": episodes // 2}


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_value_of_the_summary_is_the_runs(tmp_path: Path, world_size: int) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for run, log in ((before, RESULTS.format(1, 0.0)), (after, LOG)):
        (run / "logs").mkdir(parents=True)
        (run / "logs" / "log.txt").write_text(log)
    plan = {"mode": "ddp", "backend": "gloo", "world_size": world_size, "samples_per_step": 8}
    record = {"plan": plan, "learning_rates": [[0.1, 0.1]]}
    (after / "ddp.json").write_text(json.dumps(record))
    (after / "config.json").write_text(json.dumps({"experiment": {"rollout": {"n": 3}}}))
    with pytest.raises(DataError, match="cut short"):
        summary.summarise(before, after, {})
    record["outcome"] = {"steps": 6, "gradients_equal": True, "noise_differs": True}
    (after / "ddp.json").write_text(json.dumps(record))
    for epoch, loss in ((1, 0.9), (2, 0.1)):
        line = {"epoch": epoch, "phase": "train", "steps": 3, "seconds": 1.0, "log": {"Loss": loss}}
        history.append(after, line)
    found = summary.summarise(before, after, {"training": 12.34})
    assert tuple(found) == summary.KEYS
    assert (found["success_before"], found["success_after"]) == (0.0, 0.75)
    assert (found["first_loss"], found["last_loss"], found["steps"]) == (0.9, 0.1, 6)
    shares = {"rank 0": 3} if world_size == 1 else {"rank 0": 2, "rank 1": 1}
    assert found["episodes_per_rank"] == shares and found["seconds"] == {"training": 12.3}
