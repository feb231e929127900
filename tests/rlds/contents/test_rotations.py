"""Rotations in every format, each against matrices that are made one at a time, by definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.schema.rotations import SIZES, convert
from tests.rlds.rotations import matrix_of

QUATERNIONS = st.tuples(*[st.floats(-1, 1)] * 4)


def unit(quaternion):
    length = np.linalg.norm(quaternion)
    assume(length > 0.1)
    return np.array(quaternion) / length


@settings(max_examples=12, deadline=None)
@given(st.lists(QUATERNIONS, min_size=1, max_size=3))
def test_every_format_into_every_other(drawn):
    batch = np.stack([unit(one) for one in drawn])
    truth = np.stack([matrix_of(one, "quat_xyzw") for one in batch])
    in_format = {form: convert(batch, "quat_xyzw", form) for form in SIZES}
    for form, values in in_format.items():
        assert values.shape == (len(batch), SIZES[form])
        made = np.stack([matrix_of(one, form) for one in values])
        assert np.allclose(made, truth, atol=1e-6), form
    for one, other in itertools.permutations(SIZES, 2):
        again = convert(in_format[one], one, other)
        made = np.stack([matrix_of(row, other) for row in again])
        assert np.allclose(made, truth, atol=1e-5), (one, other)


@pytest.mark.parametrize("form", [name for name in SIZES if name.startswith("euler")])
@pytest.mark.parametrize("middle", [-np.pi / 2, np.pi / 2])
def test_angles_at_the_gimbal_lock_are_those_of_the_same_rotation(form, middle):
    angles = np.array([[0.7, middle, -1.1], [2.0, middle, 2.5]])
    matrices = convert(angles, form, "matrix")
    assert np.allclose(matrices.reshape(-1, 3, 3), [matrix_of(a, form) for a in angles], atol=1e-12)
    again = convert(matrices, "matrix", form)
    assert np.allclose([matrix_of(a, form) for a in again], matrices.reshape(-1, 3, 3), atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 1e-13, 1e-8, np.pi - 1e-9, np.pi])
def test_no_turn_and_half_a_turn(angle):
    vectors = angle * np.concatenate([np.eye(3), -np.eye(3), [[0.6, 0.0, 0.8]]])
    for form in SIZES:
        there = convert(vectors, "axis_angle", form)
        assert np.isfinite(there).all()
        back = convert(there, form, "axis_angle")
        assert np.allclose(
            [matrix_of(v, "axis_angle") for v in back],
            [matrix_of(v, "axis_angle") for v in vectors],
            atol=1e-6,
        ), form


def test_a_turn_too_small_for_a_sine_keeps_its_axis():
    vector = np.array([[6e-14, 0.0, 8e-14]])
    turned = convert(vector, "axis_angle", "quat_xyzw")
    assert np.allclose(turned, [[3e-14, 0.0, 4e-14, 1.0]], rtol=1e-9, atol=0)


def test_quaternions_come_with_a_real_part_that_is_not_negative():
    given = [
        [0.0, 0.0, -0.6, -0.8],
        [0.8, 0.0, 0.0, -0.6],
        [0.0, 0.8, 0.0, -0.6],
        [0, 0, 0.8, -0.6],
    ]
    turned = convert(np.array(given), "quat_xyzw", "quat_wxyz")
    assert np.allclose(turned, -np.roll(given, 1, axis=-1))
    plain = np.array([[0.0, 0.0, -0.6, -0.8]])
    assert convert(plain, "quat_xyzw", "quat_xyzw") is plain


def test_half_a_turn_has_one_quaternion():
    """Both signs are the same rotation, but other numbers for a policy."""
    halves = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0], [0, 1, -1], [1, 0, -1]]
    for axis in np.array(halves, float):
        unit = axis / np.linalg.norm(axis)
        matrix = np.round(2 * np.outer(unit, unit) - np.eye(3)).reshape(1, 9)
        quaternion = convert(matrix, "matrix", "quat_xyzw")
        assert np.allclose(quaternion, [[*unit, 0]]), axis


def test_lengths_do_not_matter_where_they_mean_nothing():
    one = np.array([[0.1, 0.2, 0.3, 0.4]])
    assert np.allclose(convert(one, "quat_xyzw", "matrix"), convert(7 * one, "quat_xyzw", "matrix"))
    rows = np.array([[1.0, 0.1, 0, 0.3, 2.0, 0]])  # neither of unit length nor at right angles
    matrix = convert(rows, "rot_6d", "matrix").reshape(3, 3)
    assert np.allclose(matrix @ matrix.T, np.eye(3)) and np.linalg.det(matrix) > 0
    assert np.allclose(np.cross(matrix[0], rows[0, :3]), 0)


def droids_rows(angles):
    """DROID's numbers, written out: rows 0 and 1 of Rz @ Ry @ Rx."""
    (a, b, c), (d, e, f) = np.sin(angles).T, np.cos(angles).T
    first = [f * e, f * b * a - c * d, f * b * d + c * a]
    return np.stack([*first, c * e, c * b * a + f * d, c * b * d - f * a], -1)


def test_droids_rows_are_equal_to_the_bit():
    angles = np.random.default_rng(0).uniform(-4, 4, (1000, 3))
    assert np.array_equal(convert(angles, "euler_xyz", "rot_6d"), droids_rows(angles))
