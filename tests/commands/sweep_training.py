"""Stands for a training run of a sweep: `python tests/commands/sweep_training.py key=value ...`.

Writes an epoch a moment into `history.jsonl`, resumes after the last one when it is started again,
stops at SIGTERM as our runs do, and fails where two of it run in one folder at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

EPOCHS, SECONDS = 4, 0.05


def main() -> None:
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    settings = {key: yaml.safe_load(value) for key, value in words.items()}
    epochs = settings.get("train.num_epochs", EPOCHS)
    assert settings["ddp.resume"] == "auto" and json.loads(Path(settings["load_from"]).read_text())
    run = Path(settings["train.output_dir"], settings["experiment.name"], "20260101")
    run.mkdir(parents=True, exist_ok=True)
    lock = open(run / "ddp.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(run / "starts", "a") as file:
        file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\n")
    record = {"job": None, "paths": ["logs"]}
    (run / "ddp.json").write_text(json.dumps(record))
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    print("training begins", flush=True)
    history = run / "history.jsonl"
    history.touch()
    if settings.get("train.batch_size") == 13:
        raise ValueError("13 samples bring no luck")
    (run / "requeue").unlink(missing_ok=True)
    for epoch in range(len(history.read_text().splitlines()) + 1, epochs + 1):
        time.sleep(SECONDS)
        if signals:
            (run / "requeue").write_text("{}")
            sys.exit(75)
        seed = settings.get("train.seed", 1)
        log = {"Loss": {98: float("nan"), 99: float("inf")}.get(seed, seed / epoch)}
        with open(history, "a") as file:
            file.write(json.dumps({"epoch": epoch, "phase": "valid", "log": log}) + "\n")
    (run / "ddp.json").write_text(json.dumps({**record, "outcome": {"steps": 1}}))


if __name__ == "__main__":
    main()
