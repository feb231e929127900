"""The demo task: a tool tip must reach a block on a table and close its gripper there.

Where the block lies is in the pictures only, never in the state, so a policy has to look. Positions
are metres in the world frame, angles radians (x, y, z Euler), the gripper runs from 0 (open) to 1
(closed).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from robomimic_ddp.demo.drawing import Camera, fill_box, fill_disc, fill_polygon

HEIGHT, WIDTH = 180, 320
REACH = 0.035
"""The gripper holds the block when it closes this near to its centre, measured along the table."""
GRASP_HEIGHT = 0.06
LONGEST_MOVE = 0.04
GRIPPER_SPEED = 0.34
BLOCK_HALF = 0.03

EXTERIOR_1 = Camera((1.05, -0.55, 0.65), (0.5, 0.0, 0.06), 1.7)
EXTERIOR_2 = Camera((1.05, 0.55, 0.65), (0.5, 0.0, 0.06), 1.7)
TABLE_COLOUR, FLOOR_COLOUR, TOOL_COLOUR = (24, 25, 28), (12, 12, 14), (70, 70, 75)
BLOCK_COLOUR, OPEN_COLOUR, CLOSED_COLOUR = (255, 235, 90), (40, 60, 150), (40, 120, 40)
"""A bright block on a dark mat: the untrained convolutions of an encoder already answer to it."""


class ReachSimulator:
    """One episode at a time: `reset`, then `step` until `done`. Deterministic from the seed given
    to `reset`.
    """

    def __init__(self, height: int = HEIGHT, width: int = WIDTH):
        self.height, self.width = height, width
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Draws the block's and the tip's places from `seed`."""
        random = np.random.RandomState(seed)
        self.block = np.array([random.uniform(0.38, 0.62), random.uniform(-0.13, 0.13), BLOCK_HALF])
        self.tip = random.uniform((0.36, -0.15, 0.18), (0.64, 0.15, 0.28))
        self.angles = np.array([np.pi, 0.0, random.uniform(-0.2, 0.2)])
        self.gripper = 0.0
        self.done = False
        self.success = False

    def step(self, pose: np.ndarray, gripper: float) -> None:
        """Moves towards the commanded `pose` [6] (position, Euler angles) and `gripper` opening,
        speed-limited.

        The first complete closing of the gripper ends the episode, as a success on the block only.
        """
        move = np.clip(pose[:3], (0.2, -0.35, 0.02), (0.8, 0.35, 0.45)) - self.tip
        self.tip = self.tip + move * min(1.0, LONGEST_MOVE / max(np.linalg.norm(move), 1e-9))
        turn = (np.asarray(pose[3:6]) - self.angles + np.pi) % (2 * np.pi) - np.pi
        self.angles = self.angles + np.clip(turn, -0.1, 0.1)
        closing = np.clip(gripper - self.gripper, -GRIPPER_SPEED, GRIPPER_SPEED)
        self.gripper = float(np.clip(self.gripper + closing, 0.0, 1.0))
        if self.gripper > 0.95:
            self.done = True
            near = np.linalg.norm(self.tip[:2] - self.block[:2]) <= REACH
            self.success = bool(near and self.tip[2] <= GRASP_HEIGHT)

    def state(self) -> dict[str, np.ndarray]:
        """`cartesian_position` [6], `gripper_position` [1], `joint_position` [7]: all known without
        a camera.
        """
        pose = np.concatenate([self.tip, self.angles])
        mixing = np.sin(np.arange(1, 43).reshape(7, 6))
        return {
            "cartesian_position": pose,
            "gripper_position": np.array([self.gripper]),
            "joint_position": np.tanh(mixing @ pose / 2.0) * 2.5,
        }

    def pictures(self) -> dict[str, np.ndarray]:
        """Two exterior views and the wrist's, uint8 [height, width, 3] each."""
        return {
            "exterior_image_1_left": self._exterior(EXTERIOR_1),
            "exterior_image_2_left": self._exterior(EXTERIOR_2),
            "wrist_image_left": self._wrist(),
        }

    def _gripper_colour(self) -> tuple[int, int, int]:
        mixed = (1 - self.gripper) * np.array(OPEN_COLOUR) + self.gripper * np.array(CLOSED_COLOUR)
        return tuple(int(channel) for channel in mixed)

    def _exterior(self, camera: Camera) -> np.ndarray:
        picture = _background(camera, self.height, self.width).copy()
        fill_box(picture, camera, self.block - BLOCK_HALF, self.block + BLOCK_HALF, BLOCK_COLOUR)
        x, y, z = self.tip
        marks = camera.project(np.array([(x, y, 0.0), (x, y, z)]), self.height, self.width)
        pixels = camera.focal * self.height / marks[1, 2]  # per metre at the tip's distance
        if z > 2 * BLOCK_HALF:
            fill_disc(picture, marks[0], 0.008 * pixels, FLOOR_COLOUR)  # the tip's shadow
        fill_box(
            picture, camera, (x - 0.01, y - 0.01, z), (x + 0.01, y + 0.01, z + 0.4), TOOL_COLOUR
        )
        fill_disc(picture, marks[1], 0.016 * pixels, self._gripper_colour())
        return picture

    def _wrist(self) -> np.ndarray:
        """Straight down from 0.1 m above the tip: grid lines on the table, the block, two finger
        marks.
        """
        distance = self.tip[2] + 0.1
        metres = distance / (0.8 * self.height)  # a pixel on the table
        across = self.tip[1] + (np.arange(self.width) - self.width / 2) * metres
        along = self.tip[0] + (np.arange(self.height) - self.height / 2) * metres
        picture = np.empty((self.height, self.width, 3), np.uint8)
        picture[:] = TABLE_COLOUR
        picture[:, np.abs(across) > 0.3] = FLOOR_COLOUR
        picture[np.abs(along - 0.5) > 0.3] = FLOOR_COLOUR
        top = (distance - 2 * BLOCK_HALF) / (0.8 * self.height)
        centre = np.array(
            [
                self.width / 2 + (self.block[1] - self.tip[1]) / top,
                self.height / 2 + (self.block[0] - self.tip[0]) / top,
            ]
        )
        square = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * BLOCK_HALF / top
        fill_polygon(picture, centre + square, BLOCK_COLOUR)
        spread = (0.16 - 0.1 * self.gripper) * self.height
        for side in (-1, 1):
            finger = np.array([self.width / 2 + side * spread, self.height * 0.5])
            fill_disc(picture, finger, 0.05 * self.height, self._gripper_colour())
        return picture


@lru_cache(maxsize=8)
def _background(camera: Camera, height: int, width: int) -> np.ndarray:
    """The table and the floor as `camera` sees them, uint8 [height, width, 3]; callers copy it."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = FLOOR_COLOUR
    corners = np.array([(0.2, -0.3, 0.0), (0.8, -0.3, 0.0), (0.8, 0.3, 0.0), (0.2, 0.3, 0.0)])
    fill_polygon(picture, camera.project(corners, height, width)[:, :2], TABLE_COLOUR)
    return picture
