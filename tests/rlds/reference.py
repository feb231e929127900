"""The same windows, one at a time, in numpy, from episodes that tensorflow-datasets has decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rlds.rotations import matrix_of

OBSERVATIONS = {
    "camera/image/varied_camera_1_left_image": "exterior_image_1_left",
    "camera/image/varied_camera_2_left_image": "exterior_image_2_left",
    "camera/image/hand_camera_left_image": "wrist_image_left",
    "robot_state/cartesian_position": "cartesian_position",
    "robot_state/gripper_position": "gripper_position",
    "robot_state/joint_position": "joint_position",
}
ACTIONS = {
    "action/abs_pos": ("cartesian_position", slice(0, 3)),
    "action/abs_rot_6d": ("cartesian_position", slice(3, 6)),
    "action/gripper_position": ("gripper_position", slice(0, 1)),
}
"""DROID's names, in words of the reference's own."""


def feature(step: dict[str, Any], place: str) -> np.ndarray:
    """The step feature with the slash-separated name `place`."""
    for name in place.split("/"):
        step = step[name]
    return np.asarray(step)


def raw_action(step: dict[str, Any], keys: tuple[str, ...]) -> np.ndarray:
    """The action vector of one step, float32 [A]."""
    parts = []
    for key in keys:
        name, columns = ACTIONS[key]
        numbers = np.asarray(step["action_dict"][name])[columns]
        turned = key.endswith("rot_6d")
        parts.append(matrix_of(numbers, "euler_xyz")[:2].ravel() if turned else numbers)
    return np.concatenate(parts).astype(np.float32)


def window(
    steps: list, at: int, frame_stack: int, seq_length: int, obs_keys: tuple, action_keys: tuple
) -> dict[str, Any]:
    """The window at step `at` of an episode, edges repeated, actions not yet normalised."""
    last = len(steps) - 1
    wanted = range(at - frame_stack + 1, at + seq_length)
    clipped = [min(max(step, 0), last) for step in wanted]
    return {
        "obs": {
            key: np.stack(
                [steps[s]["observation"][OBSERVATIONS[key]] for s in clipped[:frame_stack]]
            )
            for key in obs_keys
        },
        "actions": np.stack([raw_action(steps[s], action_keys) for s in clipped]),
        "pad_mask": np.array([0 <= step <= last for step in wanted]),
        "language": steps[min(at, last)]["language_instruction"].decode(),
    }


def all_windows(episodes: list, shape: Any, obs_keys: tuple, action_keys: tuple) -> list:
    """Every window of every episode in dataset order: row number = the delivered `index`."""
    rows = []
    for number, episode in enumerate(episodes):
        steps = episode["steps"]
        first = 0 if shape.pad_frame_stack else shape.frame_stack - 1
        last = len(steps) - (0 if shape.pad_seq_length else shape.seq_length - 1)
        for at in range(first, last):
            made = window(steps, at, shape.frame_stack, shape.seq_length, obs_keys, action_keys)
            rows.append({"episode": number, **made})
    return rows
