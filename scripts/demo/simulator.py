"""The demo task: a tool tip must reach a block on a table and close its gripper there.

The block is in the pictures only, never in the state, so a policy has to look. Positions are metres
in the world frame (z up, table at z = 0), angles radians (x, y, z Euler), the gripper runs from 0
(open) to 1 (closed).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

HEIGHT, WIDTH = 180, 320
REACH, GRASP_HEIGHT, BLOCK_HALF = 0.035, 0.06, 0.03
"""The gripper grasps the block when it closes as near to its centre along the table, and as low."""
LONGEST_MOVE, GRIPPER_SPEED = 0.04, 0.34
CAMERAS, TARGET, FOCAL = ((1.05, -0.55, 0.65), (1.05, 0.55, 0.65)), (0.5, 0.0, 0.06), 1.7
"""Pinhole cameras, the point that they look at, and their focal length in picture heights."""
TABLE = ((0.2, -0.3, 0.0), (0.8, -0.3, 0.0), (0.8, 0.3, 0.0), (0.2, 0.3, 0.0))
TABLE_COLOUR, FLOOR_COLOUR, TOOL_COLOUR = (24, 25, 28), (12, 12, 14), (70, 70, 75)
BLOCK_COLOUR, OPEN_COLOUR, CLOSED_COLOUR = (255, 235, 90), (40, 60, 150), (40, 120, 40)
"""A bright block on a dark mat: the untrained convolutions of an encoder already answer to it."""
LIT = (
    ((176, 152, 124), (226, 229, 233), (92, 98, 110)),
    (234, 179, 8),
    ((37, 99, 235), (22, 163, 74)),
)
"""The same colours for people: of table, floor and tool; of the block; of the gripper."""
FINGER, SHADOW = (0.016, 0.012, 0.05), 0.025
"""In that light: a finger's sides and the radius of the tool's shadow."""
_CIRCLE = np.linspace(0, 2 * np.pi, 24)


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
        self.done = self.success = False

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
        joints = np.tanh(np.sin(np.arange(1, 43).reshape(7, 6)) @ pose / 2.0) * 2.5
        gripper = np.array([self.gripper])
        return {"cartesian_position": pose, "gripper_position": gripper, "joint_position": joints}

    def pictures(self) -> dict[str, np.ndarray]:
        """Two exterior views and the wrist's, uint8 [height, width, 3] each."""
        gripper = CLOSED_COLOUR if self.gripper > 0.5 else OPEN_COLOUR
        colours = (TABLE_COLOUR, FLOOR_COLOUR, TOOL_COLOUR), BLOCK_COLOUR, gripper
        size = (self.width, self.height)
        left, right = (self._exterior(camera, size, *colours) for camera in CAMERAS)
        views = {"exterior_image_1_left": left, "exterior_image_2_left": right}
        views["wrist_image_left"] = self._wrist(gripper)
        return {name: np.asarray(picture) for name, picture in views.items()}

    def portrait(self, width: int, height: int) -> Image.Image:
        """The first exterior view in a light that suits people, with the tool's shadow."""
        scene, block, gripper = LIT
        colours = scene, block, gripper[self.gripper > 0.5]
        large = self._exterior(CAMERAS[0], (3 * width, 3 * height), *colours, lit=True)
        return large.resize((width, height), Image.Resampling.BOX)

    def _exterior(
        self,
        camera: tuple,
        size: tuple[int, int],
        scene: tuple,
        block: tuple,
        gripper: tuple,
        lit: bool = False,
    ) -> Image.Image:
        """lit: with the tool's shadow, and fingers that close."""
        table, floor, tool = scene
        picture = Image.new("RGB", size, floor)
        draw = ImageDraw.Draw(picture)

        def seen(points: Sequence) -> np.ndarray:
            return project(camera, points, *size)

        def box(low: np.ndarray, high: np.ndarray, colour: tuple[int, ...]) -> None:
            """Axis-aligned; its sides, then its top, which no side hides from above."""
            (x, y), around = np.array([low, high]).T[:2], ((0, 0), (0, 1), (1, 1), (1, 0))
            bottom, top = (seen([(x[i], y[j], z) for i, j in around]) for z in (low[2], high[2]))
            for one, other in zip(range(4), (1, 2, 3, 0)):
                side = np.stack([bottom[one], bottom[other], top[other], top[one]])
                draw.polygon(_flat(side), tuple(channel * 7 // 10 for channel in colour))
            draw.polygon(_flat(top), colour)

        draw.polygon(_flat(seen(TABLE)), table)
        if lit:
            around = SHADOW * np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE), 0 * _CIRCLE], 1)
            darker = tuple(channel * 3 // 4 for channel in table)
            draw.polygon(_flat(seen(self.tip * [1, 1, 0] + around)), darker)
        box(self.block - BLOCK_HALF, self.block + BLOCK_HALF, block)
        box(self.tip - [0.01, 0.01, 0.0], self.tip + [0.01, 0.01, 0.4], tool)
        if not lit:
            _disc(draw, seen([self.tip])[0], 0.03 * size[1], gripper)
            return picture
        low, high = np.array(FINGER) / -2, np.array(FINGER) / 2
        box(self.tip + low * [1, 8, 0.4], self.tip + high * [1, 8, 0.4], tool)
        for side in (-1, 1):
            finger = self.tip + [0, side * (0.04 - 0.025 * self.gripper), low[2]]
            box(finger + low, finger + high, gripper)
        return picture

    def _wrist(self, gripper: tuple) -> Image.Image:
        """Straight down from 0.1 m above the tip: the table, the block and two finger marks."""
        picture = Image.new("RGB", (self.width, self.height), FLOOR_COLOUR)
        draw, middle = ImageDraw.Draw(picture), np.array([self.width, self.height]) / 2

        def fill(low: Sequence, high: Sequence, z: float, colour: tuple[int, ...]) -> None:
            scale = 0.8 * self.height / (self.tip[2] + 0.1 - z)  # pixels per metre at height z
            corners = (np.array([low, high])[:, :2] - self.tip[:2])[:, ::-1] * scale + middle
            draw.rectangle(_flat(corners), colour)

        fill(TABLE[0], TABLE[2], 0.0, TABLE_COLOUR)
        fill(self.block - BLOCK_HALF, self.block + BLOCK_HALF, 2 * BLOCK_HALF, BLOCK_COLOUR)
        spread = (0.16 - 0.1 * self.gripper) * self.height
        for side in (-spread, spread):
            _disc(draw, middle + [side, 0.0], 0.05 * self.height, gripper)
        return picture


def project(camera: tuple, points: Sequence, width: int, height: int) -> np.ndarray:
    """World `points` [N, 3] -> columns and rows [N, 2] in the picture of a camera at `camera`."""
    forward = np.subtract(TARGET, camera) / np.linalg.norm(np.subtract(TARGET, camera))
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(forward, right), forward], 1)
    across, down, depth = (np.asarray(points) - camera).dot(axes).T
    return np.stack([across, down], 1) / depth[:, None] * FOCAL * height + [width / 2, height / 2]


def _flat(points: np.ndarray) -> list[float]:
    return points.ravel().tolist()


def _disc(draw: ImageDraw.ImageDraw, centre: np.ndarray, radius: float, colour: tuple) -> None:
    draw.ellipse(_flat(np.stack([centre - radius, centre + radius])), colour)
