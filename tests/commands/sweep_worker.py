"""`robomimic-ddp sweep run` of the folder that is its argument, with stand-ins for training runs:

python -m tests.commands.sweep_worker DIR [GPU...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from robomimic_ddp import cli
from robomimic_ddp.commands.sweep import command
from robomimic_ddp.commands.sweep import worker as sweep_workers
from robomimic_ddp.commands.sweep.study import Sweep
from robomimic_ddp.commands.sweep.worker import Worker

TRAINING = str(Path(__file__).with_name("sweep_training.py"))


def worker(directory: Path, gpus: Sequence[str] = ("",)) -> Worker:
    return Worker(Sweep(directory), gpus, program=[TRAINING], poll=0.05)


if __name__ == "__main__":
    ready = worker(Path(sys.argv[1]), sys.argv[2:] or ("",))
    command.checks.require_patched = lambda: ""
    sweep_workers.Worker = lambda *_: ready
    sys.exit(cli.main(["sweep", "run", sys.argv[1]]))
