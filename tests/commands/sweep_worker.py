"""A worker of the sweep in the folder that is its argument, with stand-ins for training runs:

python -m tests.commands.sweep_worker DIR [SLOTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from robomimic_ddp.commands.sweep.study import Sweep
from robomimic_ddp.commands.sweep.worker import Worker, make_slots

TRAINING = str(Path(__file__).with_name("sweep_training.py"))


def worker(directory: Path, slots: int = 2, gpus: tuple[str, ...] = (), ranks: int = 1) -> Worker:
    made = make_slots(gpus, ranks, slots)
    return Worker(Sweep(directory), made, program=[TRAINING], poll=0.05)


if __name__ == "__main__":
    sys.exit(worker(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2).run())
