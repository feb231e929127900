"""Small datasets of other shapes than DROID's: BridgeData's, and one of a lab's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (6, 3, 9, 5, 7, 4, 8, 12)
HEIGHT, WIDTH = 24, 32
TASKS = ("put the cup down", "open the drawer", "put the cup down", "")
OURS = """\
# A lab's own: one arm whose rotations are quaternions.
cameras: {front: observation.image}
states:
  position: {feature: observation.state, columns: [0, 3], of: 8}
  rotation:
    feature: observation.state
    columns: [3, 7]
    rotation: {from: quat_xyzw, to: rot_6d}
  fingers: {feature: observation.state, columns: [7, 8]}
actions:
  move: action.world_vector
  turn:
    feature: action.rotation_delta
    rotation: {from: quat_wxyz, to: axis_angle}
  grip: action.gripper
language: observation.natural_language_instruction
success: {feature: reward, equals: 1.0}
filters:
  - {feature: episode_metadata.robot, contains: left}
"""


def bridge_features() -> Any:
    """As bridge_dataset's, smaller."""
    import tensorflow_datasets as tfds

    image = tfds.features.Image(shape=(HEIGHT, WIDTH, 3), encoding_format="jpeg")
    return tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "image_0": image,
                        "image_1": image,
                        "state": tfds.features.Tensor(shape=(7,), dtype=np.float32),
                    },
                    "action": tfds.features.Tensor(shape=(7,), dtype=np.float32),
                    "language_instruction": tfds.features.Text(),
                    "language_embedding": tfds.features.Tensor(shape=(512,), dtype=np.float32),
                    "is_first": np.bool_,
                }
            ),
            "episode_metadata": {
                "file_path": tfds.features.Text(),
                "episode_id": np.int32,
                "has_image_0": np.bool_,
            },
        }
    )


def bridge_example(number: int) -> dict[str, Any]:
    """Episode `number`; every fifth lacks its camera."""
    random = np.random.RandomState(number)
    steps = [
        {
            "observation": {
                "image_0": picture(random),
                "image_1": picture(random),
                "state": random.uniform(-1, 1, 7).astype(np.float32),
            },
            "action": random.uniform(-0.5, 0.5, 7).astype(np.float32),
            "language_instruction": TASKS[number % len(TASKS)],
            "language_embedding": np.zeros(512, np.float32),
            "is_first": step == 0,
        }
        for step in range(LENGTHS[number])
    ]
    about = {"file_path": f"/{number}", "episode_id": number, "has_image_0": number % 5 != 4}
    return {"steps": steps, "episode_metadata": about}


def our_features() -> Any:
    """State 8 (position, quaternion x y z w, fingers), action in parts, text inside observation."""
    import tensorflow_datasets as tfds

    def vector(size: int) -> Any:
        return tfds.features.Tensor(shape=(size,), dtype=np.float64)

    return tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "image": tfds.features.Image(
                            shape=(HEIGHT, WIDTH, 3), encoding_format="png"
                        ),
                        "state": vector(8),
                        "natural_language_instruction": tfds.features.Text(),
                    },
                    "action": {
                        "world_vector": vector(3),
                        "rotation_delta": vector(4),
                        "gripper": np.float32,
                        "terminate_episode": np.int32,
                    },
                    "reward": np.float32,
                }
            ),
            "episode_metadata": {"robot": tfds.features.Text()},
        }
    )


def our_example(number: int) -> dict[str, Any]:
    """Episode `number`; every third is of the right arm, every fourth fails."""
    random = np.random.RandomState(100 + number)
    last = LENGTHS[number] - 1
    steps = []
    for step in range(LENGTHS[number]):
        turn, state = random.normal(size=4), random.uniform(-1, 1, 8)
        state[3:7] = random.normal(size=4)
        steps.append(
            {
                "observation": {
                    "image": picture(random),
                    "state": state,
                    "natural_language_instruction": TASKS[number % len(TASKS)] or "rest",
                },
                "action": {
                    "world_vector": random.uniform(-1, 1, 3),
                    "rotation_delta": turn / np.linalg.norm(turn),
                    "gripper": random.uniform(0, 1),
                    "terminate_episode": int(step == last),
                },
                "reward": float(step == last and number % 4 != 3),
            }
        )
    side = "right" if number % 3 == 2 else "left"
    return {"steps": steps, "episode_metadata": {"robot": f"arm, {side} one"}}


def picture(random: np.random.RandomState) -> np.ndarray:
    """uint8 [HEIGHT, WIDTH, 3], of a few even patches."""
    corner = random.randint(0, 255, (3, 4, 3))
    return corner.repeat(HEIGHT // 3, 0).repeat(WIDTH // 4, 1).astype(np.uint8)


def write(folder: Path, name: str, features: Any, examples: list, per_file: int = 3) -> Path:
    """Writes the examples as `folder`/name/1.0.0 and returns that folder."""
    import tensorflow_datasets as tfds

    final = folder / name / "1.0.0"
    final.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=name, version=tfds.core.Version("1.0.0"), data_dir=str(final), module_name=__name__
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=per_file)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": examples})
    writer.close_all()
    return final


def write_bridge(folder: Path) -> Path:
    """The dataset of BridgeData's shape."""
    examples = [bridge_example(number) for number in range(len(LENGTHS))]
    return write(folder, "bridge_like", bridge_features(), examples)


def write_ours(folder: Path) -> Path:
    """The lab's own."""
    examples = [our_example(number) for number in range(len(LENGTHS))]
    return write(folder, "our_arm", our_features(), examples)
