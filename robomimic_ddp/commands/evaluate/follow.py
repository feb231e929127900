"""New checkpoints of a run, as training writes them, until it ends."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.commands.evaluate import checkpoints
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring.records import evaluation, heartbeat, run_files, run_summary
from robomimic_ddp.terminal import say

_SILENT_SECONDS = 60.0
"""A run without a lock whose heartbeats are older has ended; torchrun's restarts take less."""

Signature = tuple[str, int, int]


class Follower:
    """The checkpoints of `run` that were not evaluated with as many `episodes` (None: with any
    number), the newest first.
    """

    def __init__(self, run: Path, episodes: int | None, poll: float = 5.0) -> None:
        self.run, self.poll = run, poll
        complete = [
            line
            for line in evaluation.results(run)
            if "file" in line and line["episodes"] + len(line["lost"]) >= (episodes or 0)
        ]
        self.weights = {(line["epoch"], line["weights"]) for line in complete}
        """Epochs and weights that were evaluated before."""
        self.done: set[Signature] = {tuple(line["file"]) for line in complete}
        self.early: set[Signature] = set()
        """Signatures of last.pth after epochs without rollouts."""
        self.unreadable: dict[str, tuple[Signature | None, str]] = {}
        """Names of files without a result -> the version that could not be read (None: a broken
        link), and why.
        """
        self.last_epoch_seen = False
        self._yielded: Signature | None = None
        """The version of a file that the caller evaluates now."""

    def paths(self) -> Iterator[Path]:
        """Yield each file; one that `failed` to be read comes again when it has changed. Waits
        while training continues. At the end `unreadable` has those without a result.
        """
        while True:
            has_ended = self._has_ended()
            path = self._next(has_ended)
            if path is not None:
                yield path
            elif has_ended:
                return
            else:
                time.sleep(self.poll)

    def failed(self, path: Path, error: CheckpointError) -> None:
        """Note that the checkpoint of `paths` could not be read. Training may have replaced it, so
        the version that counts is the one that was yielded, not that of the file now.
        """
        self.done.discard(self._yielded)
        self.unreadable[checkpoints.name_in(self.run, path)] = self._yielded, str(error)

    def _next(self, has_ended: bool) -> Path | None:
        for path in checkpoints.of_run(self.run):
            try:
                signature = checkpoints.signature(self.run, path)
            except OSError as error:
                if path.is_symlink():
                    text = f"{path} is a broken link ({error.strerror})."
                    self.unreadable[checkpoints.name_in(self.run, path)] = None, text
                continue
            if signature in self.done or (signature in self.early and not has_ended):
                continue
            version, text = self.unreadable.get(signature[0], (None, ""))
            if version == signature:  # it has not changed meanwhile
                self.done.add(signature)
                say(f"warning: a checkpoint is left out: {text}", file=sys.stderr)
                continue
            if path.name == checkpoints.LAST and not self._is_due(path, signature, has_ended):
                continue
            self.done.add(signature)
            self.unreadable.pop(signature[0], None)  # another version of it
            self._yielded = signature
            return path
        return None

    def _is_due(self, path: Path, signature: Signature, has_ended: bool) -> bool:
        """Return whether last.pth is of an epoch with rollouts, or of the last one."""
        try:
            last = checkpoints.read(signature, path, with_weights=False)
        except CheckpointError as error:
            self.unreadable[signature[0]] = signature, str(error)
            return False
        self.unreadable.pop(signature[0], None)
        self.last_epoch_seen = self.last_epoch_seen or last.is_last_epoch
        if last.is_due or last.is_last_epoch or has_ended:
            return True
        self.early.add(signature)
        return False

    def _has_ended(self) -> bool:
        """Return whether training has ended: well, or because nobody trains in the folder any more.
        Training by an unedited host has ended with its last epoch.
        """
        if not (self.run / run_files.RECORD).is_file():
            return self.last_epoch_seen
        if not run_summary.is_incomplete(self.run):
            return True
        return not files.is_locked(self.run / run_files.LOCK) and self._silence() > _SILENT_SECONDS

    def _silence(self) -> float:
        """Return how many seconds ago a rank has last shown that it is alive."""
        try:
            beats = heartbeat.read(self.run)
        except DataError:  # none
            return math.inf
        times = [beat["time"] for beat in beats if not beat["finished"]]
        return time.time() - max(times, default=0.0)
