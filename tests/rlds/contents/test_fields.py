"""What a schema means for the features of a dataset, and the numbers that it makes of steps."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from robomimic_ddp.data.rlds.schema.actions import action_vectors, part_values, split_by_key
from robomimic_ddp.data.rlds.schema.features import place_of, step_features
from robomimic_ddp.data.rlds.schema.fields import Fields, Part, available_keys, find_fields
from robomimic_ddp.data.rlds.schema.rotations import convert
from robomimic_ddp.data.rlds.schema.spec import Filter, load_schema, parse_schema
from robomimic_ddp.errors import ConfigError, DataError


class Tensor:
    """A feature of tensorflow-datasets, which knows its classes by their names."""

    def __init__(self, *shape, dtype=np.float32):
        self.shape, self.np_dtype = shape, dtype


class Image(Tensor):
    pass


class Text(Tensor):
    pass


STEPS = {
    "observation": {
        "image": Image(4, 5, 3, dtype=np.uint8),
        "depth": Image(4, 5, 1, dtype=np.uint8),
        "state": Tensor(8),
        "grid": Tensor(2, 3),
        "pose": Tensor(7),
        "ragged": Tensor(None),
    },
    "action": Tensor(7),
    "gripper": Tensor(dtype=np.int64),
    "done": Tensor(dtype=np.bool_),
    "text": Text(dtype=object),
}
FEATURES = {
    "steps": SimpleNamespace(feature=STEPS),
    "episode_metadata": {"robot": Text(dtype=object), "works": Tensor(dtype=np.bool_)},
}
TREE = {
    "cameras": {"front": "observation.image"},
    "states": {
        "joints": {"feature": "observation.state", "columns": [1, 4], "of": 8},
        "turn": {
            "feature": "observation.pose",
            "columns": [3, 7],
            "rotation": {"from": "quat_xyzw", "to": "rot_6d"},
        },
        "lost": {"feature": "observation.lost", "optional": True},
    },
    "actions": {"move": {"feature": "action", "columns": [0, 6]}, "grip": "gripper"},
    "language": {"feature": "text", "optional": True},
    "success": {"feature": "done", "equals": True},
    "filters": [
        {"feature": "episode_metadata.robot", "matches": "arm.*"},
        {"feature": "episode_metadata.lost", "equals": 1, "optional": True},
        {"feature": "text", "contains": "a", "optional": True},
    ],
    "suggested": {"cameras": ["front"]},
}
TURN = ("quat_xyzw", "rot_6d")
STATE = {"feature": "observation.state"}
TURNED = {"feature": "observation.pose", "rotation": {"from": "quat_xyzw", "to": "matrix"}}


def found(observations, images=("front",), actions=("move", "grip"), **changes):
    schema = parse_schema({**TREE, **changes}, "mine")
    return find_fields(FEATURES, "HERE", observations, images, actions, schema)


def test_what_is_read_of_a_dataset():
    fields = found(["front", "joints", "turn", "grid", "gripper"])
    assert fields == Fields(
        images={"front": "observation/image"},
        low_dim={
            "joints": Part("observation/state", 1, 4),
            "turn": Part("observation/pose", 3, 7, TURN),
            "grid": Part("observation/grid", 0, 6),
            "gripper": Part("gripper", 0, 1),
        },
        low_dim_shapes={"joints": (3,), "turn": (6,), "grid": (2, 3), "gripper": (1,)},
        actions={"move": Part("action", 0, 6), "grip": Part("gripper", 0, 1)},
        language="text",
        success=Filter("done", "equals", True),
        filters=(
            Filter("episode:episode_metadata/robot", "matches", "arm.*"),
            Filter("text", "contains", "a", True),
        ),
    )
    assert fields.action_size == 7
    assert fields.judged == ("episode:episode_metadata/robot", "text", "done")
    bare = found(["front"], language=None, success=None, filters=[])
    assert (bare.language, bare.success, bare.filters, bare.judged) == (None, None, (), ())
    assert found([], language={"feature": "lost", "optional": True}).language is None
    by_name = found([], actions=["actions", "gripper"])
    assert by_name.actions == {"actions": Part("action", 0, 7), "gripper": Part("gripper", 0, 1)}
    steps = step_features(FEATURES, "x")
    known = parse_schema(TREE, "mine")
    assert available_keys(known.observations, steps) == ["front", "joints", "turn"]
    for name in ("observation.state", "observation/state"):
        assert place_of(name, steps) == "observation/state"
    assert place_of("a/b.c", {"a/b/c": None}) == "a/b/c"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("observations", "images", "actions", "changes", "message"),
    [
        (["ragged"], [], [], {}, "fixed shape"),
        (["text"], [], [], {}, "needs numbers of a fixed shape, and `steps/text` is Text"),
        (
            ["look"], [], [], {"states": {"look": "observation.image"}},
            "`steps/observation/image` is encoded Image of shape",
        ),
        (["lost"], [], [], {}, "does not contain 'lost'"),
        ([], [], ["observation/grid"], {}, "does not contain the action"),
        (
            [], [], ["xyz"], {"actions": {"xyz": {"feature": "gripp", "optional": True}}},
            "action 'xyz'.* The nearest is `gripper`",
        ),
        (["depth"], ["depth"], [], {}, "'depth' is a camera"),
        ([], [], [], {"actions": {"a": "lost"}}, "actions.a: `lost` is not there"),
        ([], [], [], {"language": "gripper"}, "one text a step"),
        ([], [], [], {"success": {"feature": "gripper", "equals": "1"}}, "which is a number"),
        ([], [], [], {"success": {"feature": "observation.state", "equals": 1}}, "of shape"),
        ([], [], [], {"states": {"a": TURNED}}, "gives 7. Name its `columns`"),
        ([], [], [], {"states": {"a": {**STATE, "columns": [0, 9]}}}, "at least 9"),
        ([], [], [], {"states": {"a": {**STATE, "of": 9}}}, "expects 9"),
        (["stat"], [], [], {}, "does not contain 'stat'.* The nearest is `observation.state`"),
        ([], [], [], {"states": {"a": "robot_pose"}}, "nearest is `observation.pose`"),
        ([], [], [], {"states": {"a": "observation.imag"}}, "nearest is `observation.image`"),
        ([], [], [], {"language": "tex"}, "which is not a step feature.* The nearest is `text`"),
        (
            [], [], [], {"filters": [{"feature": "episode_metadata.robots", "equals": "x"}]},
            "schema mine filters by .* nearest is `episode_metadata.robot`",
        ),
        (  # nobody asks for these
            [], [], [], {"cameras": {"front": "x.image"}, "actions": {"move": "x", "grip": "y"}},
            "(?s)cameras.front.*nearest is `observation.image`.*actions.move.*actions.grip",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(observations, images, actions, changes, message):
    schema = parse_schema({**TREE, **changes}, "mine")
    with pytest.raises(DataError, match=message) as caught:
        find_fields(FEATURES, "HERE", observations, images, actions, schema)
    assert "HERE" in str(caught.value)


@pytest.mark.bad_input
def test_a_dataset_without_steps_is_none_of_rlds():
    with pytest.raises(DataError, match="flat is not an RLDS dataset"):
        find_fields({"x": Tensor()}, "flat", [], [], [], load_schema())
    with pytest.raises(DataError, match="flat is not an RLDS dataset"):
        find_fields({"steps": Tensor()}, "flat", [], [], [], load_schema())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "state",
    [
        {"feature": "x", "columns": [0, 1, 2]},
        {"feature": "x", "columns": [3, 3]},
        {"feature": "x", "columns": [-1, 2]},
        {"feature": "x", "columns": [True, 2]},
        {"feature": "x", "of": 0},
        {"feature": "x", "of": 7.0},
        {"feature": ""},
        {"columns": [0, 3]},
        {"feature": "x", "rotation": {"from": "quat_xyzw"}},
    ],
    ids=str,
)
def test_an_entry_that_means_nothing_is_refused(state):
    with pytest.raises(ConfigError, match="states.a"):
        parse_schema({"states": {"a": state}}, "mine")


def test_numbers_beyond_a_float32_and_turns_of_nothing_raise_no_warning():
    """The index counts and names their episodes; a warning for each would bury that."""
    steps = {"a": np.array([[1e300], [np.nan]]), "turn": np.zeros((2, 4))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert part_values(steps, Part("a", 0, 1)).ravel().tolist()[:1] == [np.inf]
        turned = part_values(steps, Part("turn", 0, 4, ("quat_xyzw", "rot_6d")))
    assert turned.shape == (2, 6) and not np.isfinite(turned).all()


@pytest.mark.parametrize("source", ["quat_xyzw", "axis_angle", "matrix"])
def test_angles_of_float32_rotations_are_right_at_a_pitch_of_90_degrees(source):
    draw = np.random.default_rng(0).uniform
    angles = np.stack([draw(-3, 3, 500), np.pi / 2 - draw(0, 1e-5, 500), draw(-3, 3, 500)], 1)
    stored = convert(angles, "euler_xyz", source).astype(np.float32)
    part = Part("turn", 0, stored.shape[1], (source, "euler_xyz"))
    back = part_values({"turn": stored}, part).astype(np.float64)
    exact = convert(stored.astype(np.float64), source, "matrix")
    assert np.allclose(convert(back, "euler_xyz", "matrix"), exact, atol=1e-6)


def test_the_numbers_of_a_part_and_of_actions():
    half = np.sqrt(0.5)
    steps = {
        "a": np.arange(12, dtype=np.float64).reshape(2, 2, 3),
        "turn": np.array([[9, 0, 0, half, half], [9, 0, 0, 0, 1]]),
        "whole": np.array([[0, 0, 0, 2]], np.int64),
    }
    parts = {"x": Part("a", 1, 4), "y": Part("turn", 1, 5, ("quat_xyzw", "axis_angle"))}
    actions = action_vectors(steps, parts)
    assert actions.dtype == np.float32 and parts["y"].size == 3
    expected = [[1, 2, 3, 0, 0, np.pi / 2], [7, 8, 9, 0, 0, 0]]
    assert np.allclose(actions, expected, atol=1e-6)
    by_key = split_by_key(actions, parts)
    assert [*by_key] == ["x", "y"] and np.array_equal(by_key["x"], actions[:, :3])
    assert np.array_equal(by_key["y"], actions[:, 3:])
    turns = np.random.default_rng(0).uniform(-3, 3, (100, 3)).astype(np.float32)
    of_turns = part_values({"turn": turns}, Part("turn", 0, 3, ("euler_xyz", "rot_6d")))
    exact = convert(turns.astype(np.float64), "euler_xyz", "rot_6d")
    assert np.array_equal(of_turns, exact.astype(np.float32))
    of_integers = part_values(steps, Part("whole", 0, 4, ("quat_xyzw", "euler_xyz")))
    assert of_integers.tolist() == [[0, 0, 0]]
