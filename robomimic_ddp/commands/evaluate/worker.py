"""`python -m robomimic_ddp.commands.evaluate.worker DESCRIPTOR SECONDS`: play an episode for each
message of the process that started this one, and end when that process does.

An episode, or the set-up before it, that takes more than SECONDS ends this process, which prints
where it was: a simulator that hangs inside its library cannot be ended in another way.
"""

from __future__ import annotations

import copy
import faulthandler
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.data.rlds.tf_import import keep_triton_first
from robomimic_ddp.training import episodes

_VIDEO_FPS = 20
"""As hosts have it."""
_MOST_TEXT = 500
"""Characters of an error: torch's names each tensor that does not fit."""


class Player:
    """The policy of the latest task's checkpoint, and the environments of all tasks so far."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.path: str | None = None
        self.envs: dict[str, Any] = {}
        self.unseeded: set[str] = set()

    def load(self, task: dict[str, Any]) -> None:
        """Load the policy of a task."""
        import robomimic.utils.file_utils as FileUtils

        if self.path != task["checkpoint"]:
            self.content = contents.read(task["checkpoint"])
            content = self._of_dataset(0)
            self.policy, _ = FileUtils.policy_from_checkpoint(self.device, ckpt_dict=content)
            self.config, _ = FileUtils.config_from_checkpoint(ckpt_dict=content)
            self.path = task["checkpoint"]

    def make(self, task: dict[str, Any]) -> None:
        """Make the environment of a task."""
        import robomimic.utils.file_utils as FileUtils

        content = self._of_dataset(task["dataset"])
        kind = (task["env"], task["env_name"], task["offscreen"], content["env_metadata"])
        self.key = json.dumps(kind, default=str, sort_keys=True)
        if self.key not in self.envs:
            self.envs[self.key], _ = FileUtils.env_from_checkpoint(
                ckpt_dict=content, env_name=task["env_name"], render_offscreen=task["offscreen"]
            )
            if not self._can_be_seeded(task):
                self.unseeded.add(self.key)

    def _of_dataset(self, number: int) -> dict[str, Any]:
        """Return the checkpoint with the metadata of one dataset."""
        metadata = {}
        for name in ("env_metadata", "shape_metadata"):
            value = self.content[name]
            value = value[min(number, len(value) - 1)] if isinstance(value, list) else value
            metadata[name] = copy.deepcopy(value)
        return {**self.content, **metadata}

    def _can_be_seeded(self, task: dict[str, Any]) -> bool:
        """Return whether two resets with the same seed give the same observation."""
        first, second = (self._reset(task) for _ in range(2))
        return all(np.array_equal(np.asarray(first[key]), np.asarray(second[key])) for key in first)

    def _reset(self, task: dict[str, Any]) -> dict[str, Any]:
        with self._seeded(task):
            return copy.deepcopy(self.envs[self.key].reset())

    def _seeded(self, task: dict[str, Any]) -> Any:
        streams = episodes.streams(task["seed"], task["epoch"])
        return episodes.seeded(self.envs[self.key], [task["episode"]], streams, task["number"])

    def play(self, task: dict[str, Any]) -> dict[str, float]:
        """Return the host's log of the episode."""
        import robomimic.utils.train_utils as TrainUtils

        rollout = self.config.experiment.rollout
        settings = {
            "policy": self.policy,
            "env": self.envs[self.key],
            "horizon": task["horizon"] or rollout.horizon,
            "use_goals": self.config.use_goals,
            "render": False,
            "video_skip": self.config.experiment.get("video_skip", 5),
            "terminate_on_success": rollout.terminate_on_success,
        }
        accepted = inspect.signature(TrainUtils.run_rollout).parameters
        with _video_writer(task["video"]) as video, self._seeded(task):
            settings["video_writer"] = video
            log = TrainUtils.run_rollout(
                **{name: value for name, value in settings.items() if name in accepted}
            )
        log = log[0] if isinstance(log, tuple) else log
        return {name: float(value) for name, value in log.items() if np.ndim(value) == 0}


@contextmanager
def _video_writer(path: str | None) -> Iterator[Any]:
    """For the block, a writer of the video, which has its name once it is complete."""
    if path is None:
        yield None
        return
    import imageio

    incomplete = Path(path).with_name(f".{Path(path).name}")
    incomplete.parent.mkdir(parents=True, exist_ok=True)
    writer = imageio.get_writer(incomplete, fps=_VIDEO_FPS)
    try:
        yield writer
    finally:
        writer.close()
        with suppress(FileNotFoundError):  # no frame was written
            os.replace(incomplete, path)


def reply(player: Player, task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the answer to a task: its log, or why there is none, and at which stage ("memory" at
    any of them where that is full).
    """
    stage = "setup"
    try:
        import robomimic.utils.file_utils  # noqa: F401  (a shared disk may take minutes)
        import robomimic.utils.train_utils  # noqa: F401

        faulthandler.dump_traceback_later(seconds, exit=True)
        stage = "policy"
        player.load(task)
        stage = "setup"
        player.make(task)
        stage = "episode"
        faulthandler.dump_traceback_later(seconds, exit=True)
        log = player.play(task)
        return {"log": log, "unseeded": player.key in player.unseeded}
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error):
            stage = "memory"
        text = " ".join(str(error).split())[:_MOST_TEXT]
        return {"failed": stage, "text": f"{type(error).__name__}: {text}"}
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Answer each message until the other end is closed."""
    connection, seconds = Connection(int(sys.argv[1])), float(sys.argv[2])
    tasks: SimpleQueue = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                tasks.put(json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)  # nobody waits for the episode that is played now

    threading.Thread(target=receive, daemon=True).start()
    keep_triton_first()  # DROID's hosts import TensorFlow
    torch.set_num_threads(1)  # else the number of workers would change the rounding
    player = Player()
    while True:
        connection.send_bytes(json.dumps(reply(player, tasks.get(), seconds)).encode())


if __name__ == "__main__":
    main()
