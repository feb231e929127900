"""The demo task's dataset: `python -m scripts.demo.demonstrations DIR EPISODES SEED`.

Its scripted expert is noisy, and sometimes wrong on purpose, as human demonstrations are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.write import write_dataset
from scripts.demo.simulator import HEIGHT, WIDTH, ReachSimulator

NAME, VERSION = "reach_demo", "1.1.0"
HOVER_HEIGHT, GRASP_AT, LONGEST_EPISODE = 0.13, 0.03, 70
SENTENCES = (
    *("reach the yellow block", "touch the block"),
    *("close the gripper on the yellow block", "move to the block and grasp it"),
)
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


if __name__ == "__main__":
    write_demo_dataset(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
