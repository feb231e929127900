"""A module for torchrun: each rank writes what it was started with into the folder LAUNCHED_FOLDER.

With WAIT_FOR_STOP it waits for SIGUSR1, and then does what a stopped training run does: the main
rank says where the marker `requeue` is, and all ranks return 75.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from robomimic_ddp.config import env

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


def main() -> None:
    folder = Path(os.environ["LAUNCHED_FOLDER"])
    kept = {name: os.environ.get(name) for name in (*NAMES, "CUDA_VISIBLE_DEVICES")}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("ROBOMIMIC_DDP_")}
    if "WAIT_FOR_STOP" in os.environ:
        signal.signal(signal.SIGUSR1, stop)
    reported = json.dumps({"arguments": sys.argv[1:], "variables": kept})
    (folder / f"rank{os.environ['RANK']}.json").write_text(reported)
    while "WAIT_FOR_STOP" in os.environ:
        time.sleep(0.05)


def stop(*_: object) -> None:
    if os.environ["RANK"] == "0":
        env.keep_requeue_note("/runs/experiment/20260101/requeue")
    time.sleep(0.5)  # as long as a rank may need to save
    os._exit(75)


if __name__ == "__main__":
    main()
