"""Host key -> place in an episode's record. DROID's names out of the box.

A place is a dotted name inside `steps`, such as "observation.wrist_image_left". A host key that is
not in the table is looked up as it is: "gripper" or "state/gripper" finds `observation/gripper` or
`observation/state/gripper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.errors import DataError

DROID_OBSERVATIONS = {
    "camera/image/varied_camera_1_left_image": "observation/exterior_image_1_left",
    "camera/image/varied_camera_2_left_image": "observation/exterior_image_2_left",
    "camera/image/hand_camera_left_image": "observation/wrist_image_left",
    "robot_state/cartesian_position": "observation/cartesian_position",
    "robot_state/gripper_position": "observation/gripper_position",
    "robot_state/joint_position": "observation/joint_position",
}
LANGUAGE = "language_instruction"
FILE_PATH = ("episode_metadata", "file_path")
SUCCESS_PATTERN = ".*/success/.*"


@dataclass(frozen=True)
class ActionPart:
    """Columns [start, stop) of the step feature `source`, converted from `form`: "plain" or
    "euler_to_rot_6d".
    """

    source: str
    start: int
    stop: int
    form: str = "plain"

    @property
    def size(self) -> int:
        """Numbers that the part gives to the action vector."""
        return 6 if self.form == "euler_to_rot_6d" else self.stop - self.start


DROID_ACTIONS = {
    "action/abs_pos": ActionPart("action_dict/cartesian_position", 0, 3),
    "action/abs_rot_6d": ActionPart("action_dict/cartesian_position", 3, 6, "euler_to_rot_6d"),
    "action/abs_rot_euler": ActionPart("action_dict/cartesian_position", 3, 6),
    "action/gripper_position": ActionPart("action_dict/gripper_position", 0, 1),
}


@dataclass(frozen=True)
class Fields:
    """The places of one data set that a training run reads, all checked against its features.

    images, low_dim: host observation key -> step feature; actions: host action key -> part;
    low_dim_shapes: host key -> shape of one frame; language: the step feature, or None;
    has_file_path: whether episodes carry `episode_metadata/file_path`, which the success filter
    reads.
    """

    images: Mapping[str, str]
    low_dim: Mapping[str, str]
    low_dim_shapes: Mapping[str, tuple[int, ...]]
    actions: Mapping[str, ActionPart]
    language: str | None
    has_file_path: bool

    @property
    def action_size(self) -> int:
        """Length of the action vector."""
        return sum(part.size for part in self.actions.values())


def flat_features(steps: Any, prefix: str = "") -> dict[str, Any]:
    """Step features by slash-separated name: {"observation/wrist_image_left": feature, ...}."""
    found: dict[str, Any] = {}
    for name, feature in steps.items():
        if hasattr(feature, "items"):
            found.update(flat_features(feature, f"{prefix}{name}/"))
        else:
            found[prefix + name] = feature
    return found


def find_fields(
    features: Any,
    where: str,
    obs_keys: Sequence[str],
    image_keys: Sequence[str],
    action_keys: Sequence[str],
) -> Fields:
    """The places of `obs_keys` (those in `image_keys` as pictures) and `action_keys` in a data
    set's `features`.

    `where` names the data set in errors. Raises DataError for a key that the data set does not
    hold.
    """
    steps = flat_features(_steps(features, where))
    images, low_dim, shapes = {}, {}, {}
    for key in obs_keys:
        place = _find_place(key, DROID_OBSERVATIONS.get(key), steps, where)
        if key in image_keys:
            images[key] = _check_image(key, place, steps[place], where)
        else:
            low_dim[key] = place
            shapes[key] = tuple(steps[place].shape) or (1,)
    actions = {key: _find_action(key, steps, where) for key in action_keys}
    has_file_path = FILE_PATH[0] in features and FILE_PATH[1] in features[FILE_PATH[0]]
    return Fields(
        images, low_dim, shapes, actions, LANGUAGE if LANGUAGE in steps else None, has_file_path
    )


def _steps(features: Any, where: str) -> Any:
    if "steps" not in features or not hasattr(getattr(features["steps"], "feature", None), "items"):
        raise DataError(
            f"{where} is no RLDS data set: its features are {sorted(features)}, and RLDS keeps an "
            "episode's frames in a nested data set `steps`. Point train.data_path / "
            "train.dataset_names at an RLDS one."
        )
    return features["steps"].feature


def _find_place(key: str, droid: str | None, steps: Mapping[str, Any], where: str) -> str:
    for place in (droid, key, f"observation/{key}"):
        if place in steps:
            return place
    raise DataError(
        f"{where} does not hold {key!r}: looked for `steps/{droid or f'observation/{key}'}`, found "
        f"{_listed(steps)}. Take the key out of the config, or use a data set that has it."
    )


def _find_action(key: str, steps: Mapping[str, Any], where: str) -> ActionPart:
    part = DROID_ACTIONS.get(key)
    if part is not None and part.source in steps:
        return part
    for place in (key, {"actions": "action"}.get(key)):
        if place in steps and len(steps[place].shape) <= 1:
            return ActionPart(place, 0, int((tuple(steps[place].shape) or (1,))[0]))
    raise DataError(
        f"{where} does not hold the action {key!r} of train.action_keys: found {_listed(steps)}. "
        f"Known keys are {', '.join(DROID_ACTIONS)}, or the name of a step feature."
    )


def _check_image(key: str, place: str, feature: Any, where: str) -> str:
    shape, kind = tuple(feature.shape), type(feature).__name__
    if kind != "Image" or shape[-1] != 3:
        raise DataError(
            f"{where}: {key!r} is listed under observation.modalities.obs.rgb, but `steps/{place}` "
            f"is a {kind} feature of shape {shape}. An encoded picture with 3 channels is needed."
        )
    return place


def _listed(steps: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(steps))
