"""Convert rotations from one format into another, for whole episodes at once.

    euler_xyz    angles in radians about fixed axes, the first letter's turn first, so
                 Rz(z) @ Ry(y) @ Rx(x); capital letters, euler_XYZ, for axes that turn with the
                 body: Rx(x) @ Ry(y) @ Rz(z); any order of three different axes (scipy's letters)
    quat_xyzw    unit quaternion, real part last; quat_wxyz: real part first; given with w >= 0
    axis_angle   axis times angle in radians
    matrix       the rotation matrix, row by row
    rot_6d       its first two rows (as pytorch3d, robomimic and DROID have it); rot_6d_columns:
                 its first two columns (Zhou et al., CVPR 2019)

All conversions go through the matrix, as nine arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from robomimic_ddp.errors import ConfigError, did_you_mean

_AXES = "xyz"
_EULER = ["".join(order) for letters in ("xyz", "XYZ") for order in itertools.permutations(letters)]
SIZES = {
    **{f"euler_{order}": 3 for order in _EULER},
    "quat_xyzw": 4,
    "quat_wxyz": 4,
    "axis_angle": 3,
    "matrix": 9,
    "rot_6d": 6,
    "rot_6d_columns": 6,
}
"""Format -> its length."""
_SMALL = 1e-12
_LOCKED = 1e-7
"""Gimbal lock: below this cosine of the middle angle."""


def require_format(name: Any, where: str) -> str:
    """Return `name` if it is a format; else raise ConfigError, with `where` it is set."""
    if name in SIZES:
        return name
    hint = did_you_mean(name, SIZES)
    raise ConfigError(
        f"{where}: {name!r} is not a format of rotations.{hint} Formats: euler_xyz and the other "
        "orders (capital letters: about axes that turn with the body), "
        f"{', '.join(name for name in SIZES if not name.startswith('euler'))}."
    )


def convert(values: Any, source: str, target: str) -> Any:
    """Convert rotations [..., size of source] -> [..., size of target], in the dtype of `values`. A
    vector of length 0 gives NaN.
    """
    if source == target:
        return values
    columns = [values[..., number] for number in range(SIZES[source])]
    return np.stack(_from_matrix(_to_matrix(columns, source), target), -1)


def _to_matrix(columns: list, source: str) -> list[list]:
    if source.startswith("euler_"):
        return _euler_to_matrix(columns, source[len("euler_") :])
    if source == "quat_wxyz":
        columns = [*columns[1:], columns[0]]
    if source.startswith("quat_"):
        return _quaternion_to_matrix(columns)
    if source == "axis_angle":
        return _quaternion_to_matrix(_axis_angle_to_quaternion(columns))
    if source == "matrix":
        return [columns[0:3], columns[3:6], columns[6:9]]
    rows = _orthonormal(columns[:3], columns[3:])
    return rows if source == "rot_6d" else _transposed(rows)


def _from_matrix(matrix: list[list], target: str) -> list:
    if target.startswith("euler_"):
        return _matrix_to_euler(matrix, target[len("euler_") :])
    if target == "matrix":
        return [*matrix[0], *matrix[1], *matrix[2]]
    if target == "rot_6d":
        return [*matrix[0], *matrix[1]]
    if target == "rot_6d_columns":
        columns = _transposed(matrix)
        return [*columns[0], *columns[1]]
    quaternion = _matrix_to_quaternion(matrix)
    if target == "axis_angle":
        return _quaternion_to_axis_angle(quaternion)
    return quaternion if target == "quat_xyzw" else [quaternion[3], *quaternion[:3]]


def _euler_to_matrix(angles: Sequence, order: str) -> list[list]:
    turns = [_turn(axis, angle) for axis, angle in zip(order.lower(), angles)]
    if order.islower():  # about fixed axes: the first turn is the rightmost factor
        turns.reverse()
    return _product(_product(turns[0], turns[1]), turns[2])


def _turn(axis: str, angle: Any) -> list[list]:
    """Return the rotation by `angle` about a coordinate axis; constant zeros are Python's 0."""
    sine, cosine = np.sin(angle), np.cos(angle)
    turned = [[1.0, 0, 0], [0, cosine, -sine], [0, sine, cosine]]
    first = _AXES.index(axis)
    return [[turned[row - first][column - first] for column in range(3)] for row in range(3)]


def _product(left: list[list], right: list[list]) -> list[list]:
    """Return the matrix product, without the terms that are constant zeros."""

    def entry(row: list, column: list) -> Any:
        return sum(a * b for a, b in zip(row, column) if not {type(a), type(b)} & {int})

    return [[entry(row, column) for column in _transposed(right)] for row in left]


def _quaternion_to_matrix(quaternion: Sequence) -> list[list]:
    length = np.sqrt(sum(part * part for part in quaternion))
    x, y, z, w = (part / length for part in quaternion)
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]


def _matrix_to_quaternion(m: list[list]) -> list:
    """Return (x, y, z, w), w >= 0, from the largest: no cancellation (Shepperd 1978)."""
    x, y, z = m[0][0], m[1][1], m[2][2]
    pairs = {(i, j): m[i][j] for i in range(3) for j in range(3)}
    choices = [
        [1 + x - y - z, pairs[0, 1] + pairs[1, 0], pairs[0, 2] + pairs[2, 0], m[2][1] - m[1][2]],
        [pairs[0, 1] + pairs[1, 0], 1 - x + y - z, pairs[1, 2] + pairs[2, 1], m[0][2] - m[2][0]],
        [pairs[0, 2] + pairs[2, 0], pairs[1, 2] + pairs[2, 1], 1 - x - y + z, m[1][0] - m[0][1]],
        [m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1], 1 + x + y + z],
    ]
    chosen, largest = choices[0], choices[0][0]
    for number in (1, 2, 3):
        is_larger = choices[number][number] > largest
        chosen = [np.where(is_larger, new, old) for new, old in zip(choices[number], chosen)]
        largest = np.where(is_larger, choices[number][number], largest)
    length = np.sqrt(sum(part * part for part in chosen))
    length = np.where(chosen[3] < 0, -length, length)
    return [part / length for part in chosen]


def _axis_angle_to_quaternion(vector: Sequence) -> list:
    angle = np.sqrt(sum(part * part for part in vector))
    still = angle < _SMALL
    factor = np.where(
        still, np.ones_like(angle) / 2, np.sin(angle / 2) / np.where(still, 1 + angle, angle)
    )
    return [*(part * factor for part in vector), np.cos(angle / 2)]


def _quaternion_to_axis_angle(quaternion: Sequence) -> list:
    *vector, real = quaternion
    length = np.sqrt(sum(part * part for part in vector))
    still = length < _SMALL
    angle = 2 * np.arctan2(length, real)
    factor = np.where(still, 2 * np.ones_like(angle), angle / np.where(still, 1 + length, length))
    return [part * factor for part in vector]


def _matrix_to_euler(m: list[list], order: str) -> list:
    """Return the angles, the middle one within [-pi/2, pi/2]; at its ends the third is 0."""
    fixed = order.islower()
    p, q, r = (_AXES.index(axis) for axis in (order[::-1] if fixed else order.lower()))
    even = 1 if (q - p) % 3 == 1 else -1
    cosine = np.sqrt(m[p][p] * m[p][p] + m[p][q] * m[p][q])
    middle = np.arctan2(even * m[p][r], cosine)
    locked = cosine < _LOCKED
    first = np.where(
        locked,
        np.arctan2(even * m[r][q], m[q][q]),
        np.arctan2(-even * m[q][r], m[r][r]),
    )
    third = np.arctan2(-even * m[p][q], m[p][p])
    third = np.where(locked, np.zeros_like(third), third)
    return [third, middle, first] if fixed else [first, middle, third]


def _orthonormal(first: Sequence, second: Sequence) -> list[list]:
    """Return an orthonormal basis, as three rows, from two vectors (Gram-Schmidt)."""
    first = _unit(first)
    along = sum(a * b for a, b in zip(first, second))
    second = _unit([b - along * a for a, b in zip(first, second)])
    third = [
        first[1] * second[2] - first[2] * second[1],
        first[2] * second[0] - first[0] * second[2],
        first[0] * second[1] - first[1] * second[0],
    ]
    return [first, second, third]


def _unit(vector: Sequence) -> list:
    length = np.sqrt(sum(part * part for part in vector))
    return [part / length for part in vector]


def _transposed(matrix: list[list]) -> list[list]:
    return [list(column) for column in zip(*matrix)]
