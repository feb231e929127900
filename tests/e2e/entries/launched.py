"""A module for torchrun: each rank writes what it was started with into the folder LAUNCHED_FOLDER.

With WAIT_FOR_STOP it waits for SIGUSR1, and then does what a stopped training run does: the main
rank leaves a state and the marker `requeue`, and all ranks return 75.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

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
    run = Path(os.environ["LAUNCHED_FOLDER"]) / "runs" / "experiment" / "20260101"
    if os.environ["RANK"] == "0":
        run.mkdir(parents=True, exist_ok=True)
        (run / "ddp_state.pth").touch()
        (run / "ddp.json").write_text(json.dumps({"job": os.environ["TORCHELASTIC_RUN_ID"]}))
        (run / "requeue").touch()
    time.sleep(0.5)  # as long as a rank may need to save
    os._exit(75)


if __name__ == "__main__":
    main()
