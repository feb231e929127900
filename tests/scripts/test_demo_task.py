"""The demo task: deterministic, seen only by the cameras, mostly solved by its expert."""

from __future__ import annotations

import numpy as np
import pytest

from robomimic_ddp.data.rlds.schema.rotations import convert
from scripts.demo.demonstrations import command, main, record_episode
from scripts.demo.simulator import ReachSimulator


def test_expert_succeeds_mostly_fails_sometimes_and_differs_in_length():
    episodes = [record_episode(0, index, 18, 32) for index in range(60)]
    rate = np.mean([episode["success"] for episode in episodes])
    assert 0.7 < rate < 0.97
    lengths = {len(episode["steps"]) for episode in episodes}
    assert len(lengths) > 5 and min(lengths) >= 5 and max(lengths) < 70
    assert {episode["language"] == "" for episode in episodes} == {True, False}


def test_the_command_line_is_checked_before_anything_is_written(tmp_path, capsys):
    for words, said in ([], "required: destination"), (["new", "two", "0"], "argument episodes"):
        with pytest.raises(SystemExit, match="2"):
            main([str(tmp_path / "new.hdf5"), *words[1:]] if words else [])
        assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    main([str(tmp_path / "new.hdf5"), "2", "0"])
    assert "2 episodes are in " in capsys.readouterr().out


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


def test_an_expert_succeeds_in_the_hosts_environment(monkeypatch):
    """By the host's interface alone, in the same episode for the same seed."""
    import robomimic.envs.wrappers as EnvWrappers
    from robomimic.utils import obs_utils

    from scripts.demo.environment import FIRST_SEED, ReachEnv

    camera, pose = "camera/image/varied_camera_1_left_image", "robot_state/cartesian_position"
    keys = {camera: "rgb", pose: "low_dim"}
    monkeypatch.setattr(obs_utils, "OBS_KEYS_TO_MODALITIES", keys)
    env = EnvWrappers.FrameStackWrapper(ReachEnv("reach_demo", image_dim=(8, 16)), num_frames=2)
    begins = []
    for seed in (3, 3, 4):
        np.random.seed(seed)
        moment = env.reset()
        begins.append(moment[pose][-1])
        while not env.is_done():
            simulator = env.env.simulator
            goal, gripper = command(simulator, simulator.block[:2], 0.03)
            turn = convert(goal[3:], "euler_xyz", "rot_6d")
            moment, reward, _, _ = env.step(np.concatenate([goal[:3], turn, [gripper]]))
        assert env.is_success() == {"task": True} and reward == 1.0
        assert moment[camera].shape == (2, 8, 16, 3) and moment[camera].dtype == np.uint8
    assert np.array_equal(begins[0], begins[1]) and not np.array_equal(begins[0], begins[2])
    assert env.render(mode="rgb_array", height=24, width=32).shape == (24, 32, 3)
    assert np.random.RandomState(0).randint(2**31, size=1000).max() < FIRST_SEED


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
