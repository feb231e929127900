"""Plays the episodes of a checkpoint that the record lacks, and records the results."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.evaluate import checkpoints, record
from robomimic_ddp.commands.evaluate.checkpoints import Checkpoint
from robomimic_ddp.commands.evaluate.workers import Pool, Task
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring.records import evaluation
from robomimic_ddp.terminal import say

_PROGRESS_SECONDS = 30.0
_MOST_EPISODES = 100_000
_MOST_FAILURES = 4
"""Episodes of a checkpoint that fail one after another: then all of them would."""


class Evaluator:
    """Evaluates checkpoints of `run` on `pool`. folder: for copies of them; episodes: of each
    environment, None for the config's; filmed: how many of them are filmed.
    """

    def __init__(
        self,
        run: Path,
        folder: Path,
        pool: Pool,
        trackers: record.Trackers,
        episodes: int | None,
        filmed: int,
    ) -> None:
        self.run, self.folder, self.pool, self.trackers = run, folder, pool, trackers
        self.episodes, self.filmed = episodes, filmed
        self.unseeded: set[str] = set()
        self.done: set[tuple[int, str]] = set()
        """Epochs and weights: several files may have the same."""
        self.has_answered = False
        """Whether a process has outlived an episode: if none has, no checkpoint can be played."""

    def evaluate(self, path: Path) -> list[dict[str, Any]]:
        """Record, log and return the results of the checkpoint's environments; none where its
        weights were evaluated as another file. Raises CheckpointError and DataError.
        """
        copy, checkpoint = checkpoints.copy_and_read(self.run, path, self.folder)
        identity = (checkpoint.epoch, checkpoint.weights)
        started = time.monotonic()
        try:
            if identity in self.done:
                self._name(checkpoint)
                return []
            played, lost = self._play(copy, checkpoint)
            seconds = round(time.monotonic() - started, 1)
            results = self._results(checkpoint, played, lost, seconds)
            record.keep_best(self.run, checkpoint, copy)
        finally:
            copy.unlink(missing_ok=True)
        self.done.add(identity)
        self.trackers.log(checkpoint, results)
        return results

    def _name(self, checkpoint: Checkpoint) -> None:
        """Record that results of last.pth are those of this file, which later epochs leave."""
        if checkpoint.shown in (checkpoints.LAST, checkpoints.BEST_SUCCESS):
            return
        identity = (checkpoint.epoch, checkpoint.weights)
        for line in evaluation.results(self.run):
            is_same = (line["epoch"], line["weights"]) == identity
            if is_same and line["checkpoint"] == checkpoints.LAST:
                file = {"file": list(checkpoint.file)} if "file" in line else {}
                self._write({**line, "checkpoint": checkpoint.shown, **file})

    def _play(self, copy: Path, checkpoint: Checkpoint) -> tuple[dict, dict]:
        """Play the episodes without a record or without their video; return the records of all by
        (environment, episode), and why others were left out.
        """
        played = self._recorded(checkpoint)
        tasks = list(self._tasks(copy, checkpoint, played))
        recorded, lost, failures, shown = len(played), {}, 0, time.monotonic()
        total = len(checkpoint.environments) * self._count(checkpoint)
        if recorded and tasks:
            say(f"{checkpoint.shown}: {recorded} episode(s) are in {evaluation.FILE_NAME} already")
        with closing(self.pool.play(tasks)) as answers:
            for task, answer in answers:
                self.has_answered = self.has_answered or "died" not in answer
                key = (task.message["env"], task.message["episode"])
                if "lost" in answer:
                    if key not in played:
                        lost[key] = answer["lost"]
                    what = "not filmed" if key in played else "left out"
                    say(f"warning: {task} is {what}: {answer['lost']}", file=sys.stderr)
                    failures += 1
                    if failures == _MOST_FAILURES:
                        raise _unplayable(
                            f"{checkpoint.shown}: {failures} episodes in a row failed; the last, "
                            f"{task}: {answer['lost']}. Their output is in {self.pool.log.name}.",
                            self.has_answered,
                        )
                    continue
                failures = 0
                self._say_unseeded(task, answer)
                if key not in played:
                    played[key] = self._append(checkpoint, *key, answer["log"])
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    say(f"{checkpoint.shown}: {len(played)} of {total} episodes")
        return played, lost

    def _recorded(self, checkpoint: Checkpoint) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the records of this checkpoint's episodes, of those that are asked for."""
        identity, count = (checkpoint.epoch, checkpoint.weights), self._count(checkpoint)
        return {
            (line["env"], line["episode"]): line
            for line in evaluation.read(self.run)
            if line["kind"] == "episode"
            and (line["epoch"], line["weights"]) == identity
            and line["episode"] < count
        }

    def _count(self, checkpoint: Checkpoint) -> int:
        count = self.episodes or checkpoint.number("experiment.rollout.n", 50)
        return min(max(1, count), _MOST_EPISODES)

    def _tasks(self, copy: Path, checkpoint: Checkpoint, played: dict) -> Iterator[Task]:
        """Yield the episodes that are not in `played`, and those whose video is missing."""
        for environment in checkpoint.environments:
            common = {
                **asdict(environment),
                "env": environment.name,
                "checkpoint": str(copy),
                "seed": checkpoint.number("train.seed", 1),
                "epoch": checkpoint.epoch,
                "offscreen": self.filmed > 0,
            }
            for episode in range(self._count(checkpoint)):
                video = None
                if episode < self.filmed:
                    name = re.sub(r"[^\w.]+", "_", f"{copy.stem}_{environment.name}_{episode}")
                    video = str(self.run / "videos" / "evaluation" / f"{name}.mp4")
                is_missing = video is not None and not _shows(video, checkpoint)
                if is_missing or (environment.name, episode) not in played:
                    message = {**common, "episode": episode, "video": video}
                    yield Task(message, checkpoint.shown)

    def _append(self, checkpoint: Checkpoint, env: str, episode: int, log: dict) -> dict[str, Any]:
        line = {"kind": "episode", "epoch": checkpoint.epoch, "weights": checkpoint.weights}
        line |= {"env": env, "episode": episode, "log": log}
        self._write(line)
        return line

    def _results(
        self, checkpoint: Checkpoint, played: dict, lost: dict, seconds: float
    ) -> list[dict[str, Any]]:
        """Record and return the results. seconds: the time of all environments together."""
        results = []
        for environment in checkpoint.environments:
            name = environment.name
            lines = [played[key] for key in sorted(played) if key[0] == name]
            missing = sorted(episode for env, episode in lost if env == name)
            if not lines:
                raise _unplayable(
                    f"{checkpoint.shown}: all episodes of {name} failed; the last: "
                    f"{lost[name, missing[-1]]}. Their output is in {self.pool.log.name}.",
                    self.has_answered,
                )
            result = {
                **record.result(lines),
                "checkpoint": checkpoint.shown,
                "lost": missing,
                "seconds_of_all": seconds,
            }
            if environment is checkpoint.environments[-1]:  # then all of them are recorded
                result["file"] = list(checkpoint.file)
            self._write(result)
            results.append(result)
        return results

    def _write(self, line: dict[str, Any]) -> None:
        try:
            evaluation.append(self.run, line)
        except OSError as error:
            raise DataError(
                f"{self.run / evaluation.FILE_NAME} cannot be written: {error}. Free disk space "
                "and run the command again: it skips the episodes that are in that file."
            ) from error

    def _say_unseeded(self, task: Task, answer: dict[str, Any]) -> None:
        env = task.message["env"]
        if answer.get("unseeded") and env not in self.unseeded:
            self.unseeded.add(env)
            say(
                f"note: the simulator of {env} cannot be seeded: episodes begin differently each "
                "time, so the success of the same checkpoint varies between evaluations",
            )


def _shows(video: str, checkpoint: Checkpoint) -> bool:
    """Return whether there is the video, and not of an earlier last.pth."""
    with suppress(OSError):
        return Path(video).stat().st_mtime_ns >= checkpoint.file[2]
    return False


def _unplayable(text: str, has_answered: bool) -> Exception:
    """Return the error of a checkpoint whose episodes fail, or of all of them."""
    return CheckpointError(text) if has_answered else DataError(text)
