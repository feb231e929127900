"""`python -m tests.evaluate.logs_to_wandb RUN` logs two evaluations to wandb, offline, in the run
that training has begun, and prints what wandb has written: the run's id and its history, as JSON.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2

from robomimic_ddp.commands.evaluate.record import Trackers

HEADER, BLOCK = 7, 32768


def records(data: bytes) -> Iterator[Any]:
    """Yield wandb's records, which are in the format of LevelDB's log."""
    at, message = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # complete, or the last part
            yield wandb_internal_pb2.Record.FromString(message)
            message = b""


def main(run: Path) -> None:
    """Log and print."""
    (run / "logs").mkdir()
    (run / "logs" / "wandb_run_id").write_text("begun\n")
    config = {"experiment": {"logging": {"log_wandb": True, "wandb_proj_name": "lift"}}}
    trackers = Trackers(run)
    for epoch in (50, 20):  # the newest is evaluated first
        result = {"env": "lift", "log": {"Success_Rate": epoch / 100}}
        trackers.log(SimpleNamespace(config=config, epoch=epoch, mean_of=""), [result])
    trackers.close()
    wandb.teardown()  # its service writes the rest
    (file,) = run.glob("logs/wandb/offline-run-*/*.wandb")
    written = list(records(file.read_bytes()))
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.history.item}
        for row in written
        if row.WhichOneof("record_type") == "history"
    ]
    (begun,) = (row.run for row in written if row.WhichOneof("record_type") == "run")
    print(json.dumps({"id": begun.run_id, "project": begun.project, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
