"""The demo task: deterministic, seen only by the cameras, mostly solved by its expert."""

from __future__ import annotations

import numpy as np

from scripts.demo.demonstrations import record_episode
from scripts.demo.simulator import ReachSimulator


def test_expert_succeeds_mostly_fails_sometimes_and_differs_in_length():
    episodes = [record_episode(0, index, 18, 32) for index in range(60)]
    rate = np.mean([episode["success"] for episode in episodes])
    assert 0.7 < rate < 0.97
    lengths = {len(episode["steps"]) for episode in episodes}
    assert len(lengths) > 5 and min(lengths) >= 5 and max(lengths) < 70
    assert {episode["language"] == "" for episode in episodes} == {True, False}


def test_an_episode_is_a_function_of_seed_and_number():
    one, two = record_episode(3, 5, 18, 32), record_episode(3, 5, 18, 32)
    for left, right in zip(one["steps"], two["steps"]):
        assert np.array_equal(left["action"], right["action"])
        for key, value in left["observation"].items():
            assert np.array_equal(value, right["observation"][key]), key
    other = record_episode(4, 5, 18, 32)
    assert not np.array_equal(one["steps"][0]["action"], other["steps"][0]["action"])


def test_the_block_is_in_the_pictures_and_nowhere_else():
    one, two = ReachSimulator(), ReachSimulator()
    one.reset(1)
    two.reset(1)
    two.block = one.block + [0.05, -0.04, 0]
    for key, value in one.state().items():
        assert np.array_equal(value, two.state()[key])
    for key, picture in one.pictures().items():
        assert picture.shape == (180, 320, 3) and picture.dtype == np.uint8
        assert not np.array_equal(picture, two.pictures()[key]), key


def reach(simulator, goal, gripper, steps=40):
    """Drives the tip to `goal`, then the gripper to `gripper`."""
    pose = np.concatenate([goal, [np.pi, 0, 0]])
    for _ in range(steps):
        simulator.step(pose, 0.0)
    for _ in range(5):
        if not simulator.done:
            simulator.step(pose, gripper)


def test_success_needs_the_gripper_closed_at_the_block():
    simulator = ReachSimulator(18, 32)
    at_block = simulator.block * [1, 1, 0] + [0, 0, 0.03]
    for goal, gripper, success in (
        (at_block, 1.0, True),
        (at_block, 0.4, False),
        (at_block + [0, 0.06, 0], 1.0, False),
        (at_block + [0, 0, 0.1], 1.0, False),
    ):
        simulator.reset(0)
        reach(simulator, goal, gripper)
        assert simulator.success is success
        assert simulator.done is (gripper == 1.0)
