"""Writes the demo task's data set: `python -m robomimic_ddp.demo.write_dataset --out DIR --episodes
N --seed S`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robomimic_ddp import paths
from robomimic_ddp.demo.expert import record_episode
from robomimic_ddp.demo.simulator import HEIGHT, WIDTH
from robomimic_ddp.rlds.write import write_dataset

NAME, VERSION, FILES = "reach_demo", "1.0.0", 16
logger = logging.getLogger(__name__)


def episodes(count: int, seed: int, height: int, width: int) -> Iterator[dict[str, Any]]:
    """The expert's episodes, one at a time."""
    for index in range(count):
        if index and index % 50 == 0:
            logger.info("%d of %d episodes written", index, count)
        yield record_episode(seed, index, height, width)


def write_demo_dataset(
    out: str,
    count: int,
    seed: int,
    files: int = FILES,
    height: int = HEIGHT,
    width: int = WIDTH,
    name: str = NAME,
) -> Path:
    """Writes `count` episodes under `out/name/1.0.0`, byte for byte the same for the same
    arguments.
    """
    return write_dataset(out, name, VERSION, episodes(count, seed, height, width), count, files)


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=paths.writable, required=True, help="as train.data_path")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--height", type=int, default=HEIGHT, help="rows of the stored pictures")
    parser.add_argument("--width", type=int, default=WIDTH, help="columns of the stored pictures")
    parser.add_argument("--name", default=NAME, help="data set's name (train.dataset_names)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = write_demo_dataset(
        arguments.out,
        arguments.episodes,
        arguments.seed,
        arguments.files,
        arguments.height,
        arguments.width,
        arguments.name,
    )
    print(f"{arguments.episodes} episodes written to {folder}")


if __name__ == "__main__":
    main()
