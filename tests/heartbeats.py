"""Heartbeats of ranks, as a run leaves them for `robomimic-ddp watch`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from robomimic_ddp.monitoring.records import heartbeat


def beat(rank: int = 0, **changes: Any) -> dict[str, Any]:
    """The heartbeat of a rank that trains; `time` is now."""
    state = {
        **{"rank": rank, "world_size": 2, "host": "node0", "pid": 100 + rank, "device": "cuda:0"},
        **{"epoch": 2, "step": 40, "loss": 0.125, "step_seconds": 0.25, "finished": False},
        **{"place": "epoch 2 train, step 40", "memory": 3 * 2**20, "idle_seconds": 0.1},
    }
    return {**state, "time": time.time(), **changes}


def write(directory: Path, *beats: dict[str, Any]) -> None:
    folder = directory / heartbeat.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for state in beats:
        (folder / f"rank{state['rank']}.json").write_text(json.dumps(state))
