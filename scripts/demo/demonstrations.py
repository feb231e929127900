"""The demo task's dataset: `python -m scripts.demo.demonstrations DIR EPISODES SEED` in RLDS, or
FILE.hdf5 in place of DIR in robomimic's format.

Its scripted expert is noisy, and sometimes wrong on purpose, as human demonstrations are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.terminal import whole_number
from scripts.demo.simulator import HEIGHT, WIDTH, ReachSimulator
from scripts.write_rlds import write_dataset

NAME, VERSION = "reach_demo", "1.1.0"
HOVER_HEIGHT, GRASP_AT, LONGEST_EPISODE = 0.13, 0.03, 70
SENTENCES = (
    *("reach the yellow block", "touch the block"),
    *("close the gripper on the yellow block", "move to the block and grasp it"),
)
HDF5_KEYS = ("cartesian_position", "gripper_position", "exterior_image_1_left")
FAILING, WORDLESS = 0.15, 0.15
"""Shares of episodes that aim beside the block, and of episodes without a language instruction."""


def command(simulator: ReachSimulator, aim: np.ndarray, speed: float) -> tuple[np.ndarray, float]:
    """The expert's pose [6] and gripper command: above `aim` [2], then down, then close."""
    offset = aim - simulator.tip[:2]
    above = np.linalg.norm(offset) < 0.015
    low = simulator.tip[2] < GRASP_AT + 0.012
    goal = np.array([aim[0], aim[1], GRASP_AT if above or low else HOVER_HEIGHT])
    move = goal - simulator.tip
    move *= min(1.0, speed / max(np.linalg.norm(move), 1e-9))
    return np.concatenate([simulator.tip + move, [np.pi, 0.0, 0.0]]), float(above and low)


def record_episode(
    seed: int, index: int, height: int = HEIGHT, width: int = WIDTH
) -> dict[str, Any]:
    """Episode `index` of the dataset drawn from `seed`: a pure function of the two.

    Returns a dict with `steps` (a list of DROID-shaped steps, pictures as uint8 arrays), `success`,
    `language`.
    """
    random = np.random.RandomState((seed * 1_000_003 + index) % 2**32)
    simulator = ReachSimulator(height, width)
    simulator.reset(int(random.randint(2**31)))
    speed = random.uniform(0.018, 0.036)
    aim = simulator.block[:2].copy()
    if random.rand() < FAILING:
        angle = random.uniform(0, 2 * np.pi)
        aim += random.uniform(0.06, 0.1) * np.array([np.cos(angle), np.sin(angle)])
    language = "" if random.rand() < WORDLESS else SENTENCES[random.randint(len(SENTENCES))]
    steps = []
    while not simulator.done and len(steps) < LONGEST_EPISODE:
        pose, gripper = command(simulator, aim, speed)
        pose = pose + random.normal(0, 1, 6) * ([0.003] * 3 + [0.02] * 3)
        before = simulator.state()
        observation = {**simulator.pictures(), **before}
        simulator.step(pose, gripper)
        velocity = (simulator.tip - before["cartesian_position"][:3]) / 0.04
        turning = (simulator.angles - before["cartesian_position"][3:]) / 0.1
        acted = {"cartesian_position": pose, "gripper_position": np.array([gripper])}
        action = np.concatenate([velocity, turning, [gripper]])
        steps.append({"observation": observation, "action_dict": acted, "action": action})
    return {"steps": steps, "success": simulator.success, "language": language}


def write_demo_dataset(
    out: Path, count: int, seed: int, files: int = 16, height: int = HEIGHT, width: int = WIDTH
) -> Path:
    """Writes `count` episodes under `out/reach_demo/1.1.0`, byte for byte the same for the same
    arguments; a folder of that name is complete.
    """
    episodes = (record_episode(seed, index, height, width) for index in range(count))
    return write_dataset(str(out), NAME, VERSION, episodes, count, files)


def count_written(out: Path) -> int:
    """How many episodes `write_demo_dataset` wrote under `out`; 0 where there is no dataset."""
    info = out / NAME / VERSION / "dataset_info.json"
    if not info.exists():
        return 0
    (split,) = json.loads(info.read_text())["splits"]
    return sum(int(length) for length in split["shardLengths"])


def write_hdf5(out: Path, count: int, seed: int, height: int = 48, width: int = 80) -> Path:
    """Writes the same episodes to the file `out` in robomimic's format: states [T, D] in float64,
    one camera [T, height, width, 3] in uint8, actions [T, 7] within [-1, 1]. Every tenth episode
    is the filter key "valid", the others "train". A file `out` is complete.
    """
    import h5py

    names = [f"demo_{index}" for index in range(count)]
    unfinished = out.with_suffix(".incomplete")
    out.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(unfinished, "w") as file:
        data, total = file.create_group("data"), 0
        data.attrs["env_args"] = json.dumps({"env_name": NAME, "type": 2, "env_kwargs": {}})
        for index, name in enumerate(names):
            steps = record_episode(seed, index, height, width)["steps"]
            group, ends = data.create_group(name), np.arange(len(steps)) == len(steps) - 1
            group.attrs["num_samples"] = len(steps)
            group["actions"] = np.clip([step["action"] for step in steps], -1.0, 1.0)
            group["rewards"], group["dones"] = ends.astype(np.float64), ends.astype(np.int64)
            for key in HDF5_KEYS:
                group[f"obs/{key}"] = np.stack([step["observation"][key] for step in steps])
            total += len(steps)
        data.attrs["total"] = total
        file["mask/valid"] = np.array(names[::10], dtype="S")
        file["mask/train"] = np.array(sorted({*names} - {*names[::10]}), dtype="S")
    unfinished.replace(out)
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the demonstrations that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.demo.demonstrations",
        description="Record episodes of a scripted expert.",
    )
    parser.add_argument("destination", help="the new file NAME.hdf5, or a folder for RLDS data")
    parser.add_argument("episodes", type=whole_number(1))
    parser.add_argument("seed", type=whole_number(0))
    options = parser.parse_args(arguments)
    destination = Path(options.destination).expanduser()
    write = write_hdf5 if destination.suffix == ".hdf5" else write_demo_dataset
    print(
        f"{options.episodes} episodes are in {write(destination, options.episodes, options.seed)}"
    )


if __name__ == "__main__":
    main()
