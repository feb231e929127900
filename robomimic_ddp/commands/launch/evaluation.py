"""`launch --evaluate`: follows the run of this node's main rank with `robomimic-ddp evaluate`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

from robomimic_ddp.commands import training_process
from robomimic_ddp.config import end_with_parent, env, resume_command
from robomimic_ddp.terminal import print_clean

_LOOK_SECONDS = 1.0


class Evaluation:
    """Starts the command with the arguments `words`, at a lower priority than training, once the
    main rank has written its run folder into a file next to `note`; never without `words`. The
    command ends with this process, even where that is killed.
    """

    def __init__(self, note: Path, words: str) -> None:
        self.note, self.words = note.with_name(env.RUN_NOTE), shlex.split(words)
        self.process: subprocess.Popen | None = None
        self.training_ended, self.beginning = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        if words:
            self.thread.start()

    def _watch(self) -> None:
        """Start the command and wait for its end: the kernel would end it with this thread."""
        while self.process is None and not self.training_ended.wait(_LOOK_SECONDS):
            with self.beginning:
                if not self.training_ended.is_set():
                    self._begin()
        if self.process is not None:
            self.process.wait()

    def _begin(self) -> None:
        directory = self.note.read_text(encoding="utf-8") if self.note.exists() else ""
        if directory:
            self.arguments = ["evaluate", directory, "--follow", *self.words]
            command = ["nice", sys.executable, "-m", "robomimic_ddp", *self.arguments]
            tie = end_with_parent.ending_with(os.getpid(), signal.SIGTERM)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=tie)

    @property
    def lacks_results(self) -> bool:
        """Whether the evaluation, which has ended, left out results; they can be played later."""
        return self.process is not None and self.process.returncode != 0

    def end(self, is_complete: bool) -> None:
        """End the evaluation after training: when its last results are there if training
        `is_complete`, otherwise now. Does nothing when it has ended.
        """
        if not self.words:
            return
        with self.beginning:
            self.training_ended.set()
            if self.process is None and is_complete:
                self._begin()  # training was shorter than a look
        if self.process is None:
            return
        try:
            if is_complete:
                print_clean("launch: waiting for the last results of the evaluation")
                self.process.wait()
        finally:
            self.words = []
            training_process.stop(self.process)
            if self.lacks_results:
                again = "" if is_complete else "to evaluate as well, launch again with --resume; "
                words = shlex.join(["robomimic-ddp", *self.arguments])
                command = resume_command.in_shell(
                    words, env.repeated_variables(), env.working_folder()
                )
                print_clean(
                    f"launch: results of the evaluation are missing; {again}run the remaining "
                    f"rollouts with:\n  {command}",
                    file=sys.stderr,
                )
