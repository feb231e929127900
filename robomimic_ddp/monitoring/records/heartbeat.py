"""`heartbeats/rank<k>.json` in the run directory: every few seconds, what a rank is doing.

Written by a thread, so that a rank that hangs still reports where; `robomimic-ddp watch` reads
them. Errors of writing are ignored.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import env, paths
from robomimic_ddp.distributed import watchdog
from robomimic_ddp.errors import DataError, Stopped
from robomimic_ddp.monitoring.step_hooks import LOSS, StepHook

FOLDER = "heartbeats"
_SECONDS, _RANKS_A_SECOND = 2.0, 50
_KEYS = frozenset(
    ("rank", "world_size", "pid", "step", "time", "idle_seconds", "memory", "loss", "epoch")
    + ("step_seconds", "host", "device", "place", "finished")
)
"""In a complete file."""
_LAST_SECONDS = 5.0
"""How long the last write may take, on a disk that may hang."""


class Heartbeat(StepHook):
    """Writes what this rank is doing. memory: bytes in use on its device, or by its process."""

    place = "heartbeat"

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        device: str,
        memory: Callable[[], int],
    ) -> None:
        self.path = directory / FOLDER / f"rank{rank}.json"
        self.interval = interval(world_size)
        self._memory, self._epoch, self._before = memory, None, 0
        unknown = ("epoch", "steps", "epochs", "data_share", "loss", "step_seconds", "ended")
        self._state: dict[str, Any] = {
            **dict.fromkeys(unknown),
            **{"rank": rank, "world_size": world_size, "device": device},
            **{"host": env.host_name(), "pid": os.getpid()},
            **{"begun": 0, "step": 0, "finished": False},
        }
        self._last_step, self._waited = time.monotonic(), 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._beat, name="robomimic-ddp-heartbeat", daemon=True
        )

    def start(self) -> Heartbeat:
        """Starts the thread."""
        self._thread.start()
        return self

    def stop(self, error: BaseException | None = None) -> None:
        """Writes a last time, and ends the thread. error: what has ended the run early."""
        asked = isinstance(error, (Stopped, KeyboardInterrupt))
        self._state["finished"] = error is None
        self._state["ended"] = "finished" if error is None else "ended" if asked else "failed"
        self._stop.set()
        self._thread.join(_LAST_SECONDS)
        self.write()

    def in_epoch(
        self, epoch: Any, before: int = 0, steps: int | None = None, epochs: int | None = None
    ) -> Heartbeat:
        """Itself, for the steps of that epoch, which has `steps`, `before` of them before it was
        resumed; the last epoch is `epochs`.
        """
        self._epoch, self._before = epoch, before
        self._state.update(steps=steps, epochs=epochs)
        return self

    def batch(self, batch: Any) -> None:
        state = self._state
        state["begun"] = (state["step"] if self._epoch == state["epoch"] else self._before) + 1
        self._waited = time.monotonic() - self._last_step

    def done(self) -> None:
        now, state, same = time.monotonic(), self._state, self._epoch == self._state["epoch"]
        if same:
            seconds = now - self._last_step
            state["step_seconds"] = _mean(state["step_seconds"], seconds)
            if seconds:
                state["data_share"] = _mean(state["data_share"], self._waited / seconds)
        state["step"] = (state["step"] if same else self._before) + 1
        state["epoch"] = self._epoch
        self._last_step = now

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        loss = step_log.get(LOSS)
        self._state["loss"] = float(loss) if isinstance(loss, (int, float)) else None
        return step_log

    def write(self) -> None:
        """Replaces the file atomically."""
        code = None if self._stop.is_set() else _code()  # it would be the code of `stop`
        state = {**self._state, "place": watchdog.here(), "memory": self._memory(), "code": code}
        state.update(time=time.time(), idle_seconds=time.monotonic() - self._last_step)
        temporary = self.path.with_suffix(".tmp")
        try:
            if self.path.parent.is_symlink():  # it would lead out of the run
                self.path.parent.unlink()
            self.path.parent.mkdir(exist_ok=True)
            temporary.unlink(missing_ok=True)  # what a killed rank has left
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(json.dumps(state))
            os.replace(temporary, self.path)
        except OSError:
            return  # a full disk, or a folder of another node

    def _beat(self) -> None:
        self.write()
        while not self._stop.wait(self.interval):
            self.write()


def _mean(before: float | None, value: float) -> float:
    """Return a mean that forgets old values."""
    return value if before is None else 0.9 * before + 0.1 * value


def interval(world_size: int) -> float:
    """Return the seconds between two heartbeats of a rank."""
    return _SECONDS + world_size / _RANKS_A_SECOND


def _code() -> str | None:
    """Return the main thread's current function: "wait (torch/distributed/c10d.py:77)"."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return None
    file = "/".join(Path(frame.f_code.co_filename).parts[-3:])
    return f"{frame.f_code.co_name} ({file}:{frame.f_lineno})"


def read(directory: Path) -> list[dict[str, Any]]:
    """Return every rank's newest heartbeat, in rank order. Raises DataError if none is complete."""
    return look(directory)[0]


def look(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every rank's newest heartbeat, and damaged files' names. Raises DataError for none."""
    states, damaged = [], []
    for path in sorted((Path(directory) / FOLDER).glob("rank*.json")):
        try:
            state = files.read_json(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            state = None
        complete = isinstance(state, dict) and _KEYS <= state.keys()
        states += [state] if complete else []
        damaged += [] if complete else [path.name]
    if not states:
        what = f"no {FOLDER}/rank*.json"
        if damaged:
            what = f"damaged files only in {FOLDER}/ ({', '.join(damaged[:4])})"
        hint = paths.example_below(Path(directory), f"{FOLDER}/rank0.json")
        raise DataError(
            f"{directory} has {what}; expected the folder of a run that trains under the "
            f"retrofit (the one with logs/ and models/){hint}. A rank that lives writes its file "
            "every few seconds, unless the disk is full."
        )
    # Ranks that a resumed run has no longer have left their files.
    world = max(states, key=lambda state: state["time"])["world_size"]
    states = [state for state in states if state["rank"] < world]
    return sorted(states, key=lambda state: state["rank"]), damaged
