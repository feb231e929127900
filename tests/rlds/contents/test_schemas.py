"""Datasets of other shapes through their schemas, against the examples that were written."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from robomimic_ddp.config.host.rlds_keys import DEFAULTS
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.schema import job_config
from robomimic_ddp.data.rlds.schema.spec import Filter, load_schema, packaged
from robomimic_ddp.errors import ConfigError
from tests.rlds import other_shapes
from tests.rlds.conftest import HEIGHT, WIDTH
from tests.rlds.rotations import matrix_of

BRIDGE_ACTIONS = ["action/delta_position", "action/delta_rotation", "action/gripper"]
BRIDGE_STATES = ["eef_position", "eef_rotation", "gripper"]


@pytest.fixture
def load_other(make_config, others):
    """`load_other(name, schema, cameras, states, actions)`: the train dataset, unnormalised."""

    def make(name, schema, cameras, states, actions, **changes):
        config = make_config(
            cameras=cameras,
            states=states,
            data_path=str(others),
            dataset_names=[name],
            rlds_schema=schema,
            action_keys=actions,
            action_config={key: {"normalization": None} for key in actions},
            observation={"image_dim": [other_shapes.HEIGHT, other_shapes.WIDTH]},
            frame_stack=1,
            seq_length=1,
            **changes,
        )
        config.unlock()
        config.algo_name = "other"  # only the diffusion policy needs actions within [-1, 1]
        return host_datasets.datasets_from_config(config, config.all_obs_keys)[0]

    return make


def delivered(dataset):
    """{index: (obs, action, text)} of the first pass."""
    rows = {}
    for batch in make_loader(dataset, 1, 0, 1, 0):
        seen = {key: value[0, 0].numpy() for key, value in batch["obs"].items()}
        rows[int(batch["index"])] = (seen, batch["actions"][0, 0].numpy(), batch["language"][0])
    return rows


def written(example_of, keeps):
    """{index: (step, text)} of the steps of episodes that `keeps` lets through."""
    rows, index = {}, 0
    for number in range(len(other_shapes.LENGTHS)):
        episode = example_of(number)
        for step in episode["steps"]:
            if keeps(number, episode):
                rows[index] = step
            index += 1
    return rows


def same_turn(numbers, form, truth, other):
    return np.allclose(matrix_of(numbers, form), matrix_of(truth, other), atol=1e-5)


def test_bridge_through_its_schema(load_other):
    dataset = load_other("bridge_like", "bridge", ["image_0"], BRIDGE_STATES, BRIDGE_ACTIONS)
    found = delivered(dataset)

    def keeps(number, episode):
        reported = other_shapes.TASKS[number % len(other_shapes.TASKS)]
        return bool(reported) and episode["episode_metadata"]["has_image_0"]

    wanted = written(other_shapes.bridge_example, keeps)
    assert set(found) == set(wanted) and len(wanted) > 10
    assert dataset.fields.action_size == 7
    for index, (seen, action, text) in found.items():
        state, truth = wanted[index]["observation"]["state"], wanted[index]["action"]
        assert np.array_equal(seen["eef_position"], state[:3])
        assert same_turn(seen["eef_rotation"], "rot_6d", state[3:6], "euler_xyz")
        assert np.array_equal(seen["gripper"], state[6:])
        near = seen["image_0"].astype(int) - wanted[index]["observation"]["image_0"]
        assert np.abs(near).mean() < 12  # JPEG
        assert np.array_equal(action[:3], truth[:3]) and action[6] == truth[6]
        assert same_turn(action[3:6], "axis_angle", truth[3:6], "euler_xyz")
        assert text == wanted[index]["language_instruction"]


def test_a_labs_own_schema_with_quaternions_and_filters(load_other, tmp_path):
    schema, states = tmp_path / "ours.yaml", ["position", "rotation", "fingers"]
    schema.write_text(other_shapes.OURS)
    words = "our_arm", str(schema), ["front"], states, ["move", "turn", "grip"]
    found = delivered(load_other(*words))
    wanted = written(other_shapes.our_example, lambda n, _: n % 3 != 2 and n % 4 != 3)
    assert set(found) == set(wanted) and len(wanted) > 10
    for index, (seen, action, text) in found.items():
        step = wanted[index]
        state, moved = step["observation"]["state"], step["action"]
        assert np.allclose(seen["position"], state[:3], atol=1e-6)
        unit = state[3:7] / np.linalg.norm(state[3:7])
        assert same_turn(seen["rotation"], "rot_6d", unit, "quat_xyzw")
        assert np.array_equal(seen["front"], step["observation"]["image"])  # PNG
        assert np.allclose(action[:3], moved["world_vector"], atol=1e-6)
        assert same_turn(action[3:6], "axis_angle", moved["rotation_delta"], "quat_wxyz")
        assert np.isclose(action[6], moved["gripper"])
        assert text == step["observation"]["natural_language_instruction"]
    everything = load_other(*words, success_only=False, skip_unlabeled=False)
    kept = written(other_shapes.our_example, lambda n, _: n % 3 != 2)
    assert len(everything) == len(kept), "success is an option, a schema's filters are not"


def test_a_mixture_gives_each_data_set_its_schema(others, make_config, tmp_path):
    """The same keys from two shapes."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(
        "cameras: {front: observation.image_0}\n"
        "states: {position: {feature: observation.state, columns: [0, 3]}}\n"
        "actions: {move: {feature: action, columns: [0, 3]}}\n"
        "language: language_instruction\n"
    )
    two.write_text(
        "cameras: {front: observation.image}\n"
        "states: {position: {feature: observation.state, columns: [0, 3]}}\n"
        "actions: {move: action.world_vector}\n"
        "language: observation.natural_language_instruction\n"
    )
    config = make_config(
        cameras=["front"], states=["position"], data_path=str(others),
        dataset_names=["bridge_like", "our_arm"], sample_weights=[1, 1],
        rlds_schema=[str(one), str(two)], action_keys=["move"],
        action_config={"move": {"normalization": "min_max"}},
    )  # fmt: skip
    entries = host_datasets.dataset_configs(config)
    assert [entry["key"] for entry in entries] == ["bridge_like", "our_arm"]
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    batch = next(iter(make_loader(train, 8, 0, 1, 0)))
    assert batch["actions"].shape[-1] == 3 and batch["obs"]["position"].shape == (8, 2, 3)
    texts = set(batch["language"])
    assert texts & {"rest"} or len(texts) > 1


CROP = "CropRandomizer"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kind", "height", "width", "is_refused"),
    [
        (CROP, HEIGHT, WIDTH - 1, True),
        (CROP, HEIGHT - 1, WIDTH, True),
        (CROP, HEIGHT - 1, WIDTH - 1, False),
        (CROP, HEIGHT, None, False),
        ("ColorRandomizer", HEIGHT, WIDTH, False),
    ],
)
def test_crops_are_smaller_than_the_images(kind, height, width, is_refused, make_config):
    config = make_config()
    with config.unlocked():
        rgb = config.observation.encoder.rgb
        rgb.obs_randomizer_class = kind
        rgb.obs_randomizer_kwargs = {"crop_height": height, "crop_width": width}
    refusal = pytest.raises(ConfigError, match=f"found crops of {height} x {width} from images of")
    with refusal if is_refused else nullcontext():
        job_config.check(config)


@pytest.mark.bad_input
def test_an_action_key_that_is_named_twice_is_refused(make_config):
    config = make_config()
    with config.unlocked():
        config.train.action_keys = [*config.train.action_keys, config.train.action_keys[0]]
    with pytest.raises(ConfigError, match="train.action_keys names '.*' twice"):
        job_config.check(config)


@pytest.mark.bad_input
@pytest.mark.parametrize("fraction", [0, 1, "0.1", float("nan")])
def test_a_share_for_validation_counts_where_there_is_validation(fraction, make_config):
    job_config.check(make_config(experiment={"validate": True}, validation_fraction=0.1))
    job_config.check(make_config(experiment={"validate": False}, validation_fraction=fraction))
    with pytest.raises(ConfigError, match="validation_fraction=.*: expected a share between"):
        job_config.check(make_config(experiment={"validate": True}, validation_fraction=fraction))


def test_droid_is_the_default_and_comes_with_the_package():
    assert DEFAULTS["train.rlds_schema"] == "droid" and {"droid", "bridge"} <= set(packaged())
    assert load_schema() is load_schema("droid")
    assert load_schema().actions["action/abs_rot_6d"].rotation == ("euler_xyz", "rot_6d")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("camera: {a: b}", ("unknown key 'camera'", "Did you mean cameras?")),
        ("states: {a: {feture: x}}", ("states.a", "Did you mean feature?")),
        (
            "actions: {a: {feature: x, rotation: {from: quat_xyz, to: rot_6d}}}",
            ("actions.a: rotation.from", "Did you mean quat_xyzw?"),
        ),
        (
            "actions: {a: {feature: x, columns: [0, 3], rotation: {from: quat_xyzw, to: rot_6d}}}",
            ("are 3 numbers, and quat_xyzw has 4",),
        ),
        ("filters: [{feature: x}]", ("exactly one of equals, contains, matches",)),
        ("filters: [{feature: x, matches: '('}]", ("not a regular expression",)),
        ("filters: {feature: x}", ("expected a list",)),
        ("suggested: {actions: [a]}", ("unknown key 'a'",)),
        ("suggested: {action: [a]}", (": suggested", "unknown key 'action'")),
        ("cameras: {a: {feature: x, columns: [0, 3]}}", ("cameras.a", "no columns")),
        ("cameras: [", ("cannot be read as YAML",)),
        ("states: {a: b}\nstates: {c: d}", ("cannot be read as YAML", "states")),
        ("- a", ("expected keys with values",)),
    ],
)
def test_a_wrong_schema_is_one_clear_error(text, parts, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_schema(str(path))
    assert all(part in str(caught.value) for part in (*parts, "wrong.yaml")), caught.value


@pytest.mark.parametrize(
    ("test", "value", "passing", "failing"),
    [
        ("equals", "left", b"left", b"left "),
        ("equals", True, np.bool_(True), np.bool_(False)),
        ("matches", "(?i)left.*", b"LEFT arm", b"the left"),
        ("matches", "(?!failed).*", b"done", b"failed"),
        ("contains", "(", b"a (\xff", b"\xff"),
    ],
)
def test_an_episode_passes_by_its_last_step(test, value, passing, failing):
    one = Filter("x", test, value)
    assert one.accepts({"x": [failing, failing, passing]})
    assert not one.accepts({"x": [passing, passing, failing]})
    assert not one.accepts({"x": []})
    one = Filter("episode:x", test, value)
    assert one.accepts({"episode:x": passing}) and not one.accepts({"episode:x": failing})
