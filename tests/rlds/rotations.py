"""Rotation matrices of every format, one at a time, by definition."""

from __future__ import annotations

import numpy as np


def about(axis, angle):
    """The rotation matrix about the axis of that letter, by the right hand."""
    turn = np.eye(3)
    one, two = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis.lower()]
    turn[one, one] = turn[two, two] = np.cos(angle)
    turn[one, two], turn[two, one] = -np.sin(angle), np.sin(angle)
    return turn


def hamilton(a, b):
    """The product of two quaternions (x, y, z, w)."""
    vector = a[3] * b[:3] + b[3] * a[:3] + np.cross(a[:3], b[:3])
    return np.append(vector, a[3] * b[3] - a[:3] @ b[:3])


def matrix_of(numbers, form):
    """The matrix of one rotation, by the definition of its format."""
    numbers = np.asarray(numbers, float)
    if form.startswith("euler_"):
        order = form[len("euler_") :]
        total = np.eye(3)
        for axis, angle in zip(order, numbers):
            turn = about(axis, angle)
            # Fixed axes: each turn comes on top; turning axes: each is inside the ones before.
            total = turn @ total if order.islower() else total @ turn
        return total
    if form == "quat_wxyz":
        numbers = np.append(numbers[1:], numbers[0])
    if form.startswith("quat"):
        inverse = numbers * [-1, -1, -1, 1]
        turned = [hamilton(hamilton(numbers, np.append(e, 0)), inverse)[:3] for e in np.eye(3)]
        return np.stack(turned, 1)
    if form == "axis_angle":
        angle = np.linalg.norm(numbers)
        x, y, z = numbers / angle if angle > 0 else (0, 0, 0)
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    if form == "matrix":
        return numbers.reshape(3, 3)
    rows = np.stack([numbers[:3], numbers[3:], np.cross(numbers[:3], numbers[3:])])
    return rows if form == "rot_6d" else rows.T
