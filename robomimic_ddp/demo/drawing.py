"""Pictures of the demo task, drawn with numpy: pinhole projection, filled polygons, no physics
engine.

Metres in the world frame (z up, table at z = 0), pixels (column, row) in the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Colour = "tuple[int, int, int]"


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at `position` (metres) that looks at `target`; `focal` is in picture
    heights.
    """

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    focal: float

    def axes(self) -> np.ndarray:
        """Rows: right, down and forward in world coordinates, [3, 3]."""
        forward = np.subtract(self.target, self.position).astype(float)
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, (0.0, 0.0, 1.0))
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(forward, right), forward])

    def project(self, points: np.ndarray, height: int, width: int) -> np.ndarray:
        """World `points` [N, 3] -> columns, rows and depths [N, 3] (pixels, pixels, metres)."""
        seen = (np.asarray(points, dtype=float) - self.position) @ self.axes().T
        depth = np.maximum(seen[:, 2], 1e-3)
        scale = self.focal * height / depth
        return np.stack([width / 2 + seen[:, 0] * scale, height / 2 + seen[:, 1] * scale, depth], 1)


def fill_polygon(picture: np.ndarray, corners: np.ndarray, colour: Colour) -> None:
    """Fills the convex polygon `corners` [N, 2] (column, row) in place; parts outside are cut."""
    height, width = picture.shape[:2]
    low = np.floor(corners.min(0)).astype(int)
    high = np.ceil(corners.max(0)).astype(int) + 1
    left, top = max(low[0], 0), max(low[1], 0)
    right, bottom = min(high[0], width), min(high[1], height)
    if left >= right or top >= bottom:
        return
    columns = np.arange(left, right)[None, :] + 0.5
    rows = np.arange(top, bottom)[:, None] + 0.5
    edges = np.roll(corners, -1, axis=0) - corners
    sides = [
        edge[0] * (rows - corner[1]) - edge[1] * (columns - corner[0])
        for corner, edge in zip(corners, edges)
    ]
    stacked = np.stack(sides)
    inside = np.all(stacked >= 0, axis=0) | np.all(stacked <= 0, axis=0)
    picture[top:bottom, left:right][inside] = colour


def fill_box(
    picture: np.ndarray, camera: Camera, low: Sequence[float], high: Sequence[float], colour: Colour
) -> None:
    """Draws the axis-aligned box between `low` and `high` (metres); far faces first, shaded."""
    x, y, z = np.array([low, high]).T
    corners = np.array([(x[i], y[j], z[k]) for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    flat = camera.project(corners, *picture.shape[:2])
    faces = (
        ((0, 1, 3, 2), 0.55),
        ((4, 5, 7, 6), 0.65),
        ((0, 1, 5, 4), 0.75),
        ((2, 3, 7, 6), 0.85),
        ((1, 3, 7, 5), 1.0),
    )
    for indices, shade in sorted(faces, key=lambda face: -flat[list(face[0]), 2].mean()):
        shaded = tuple(int(channel * shade) for channel in colour)
        fill_polygon(picture, flat[list(indices), :2], shaded)


def fill_disc(picture: np.ndarray, centre: np.ndarray, radius: float, colour: Colour) -> None:
    """Fills a disc of `radius` pixels around `centre` (column, row) in place."""
    angles = np.linspace(0, 2 * np.pi, 10, endpoint=False)
    corners = centre[None, :2] + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    fill_polygon(picture, corners, colour)
