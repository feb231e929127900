"""Starts the user's training on some ranks through torchrun, and returns what it logs of its
epochs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.bench.report import ranks_text
from robomimic_ddp.commands.launch import torchrun
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import env, parent
from robomimic_ddp.errors import LaunchError
from robomimic_ddp.monitoring import history
from robomimic_ddp.terminal import print_clean

_LOG_LINES = 15
_STOP_SECONDS = 60


def train(job: Settings, output: Path) -> list[Mapping[str, float]]:
    """Return the train log of each epoch. Raises LaunchError if the training fails."""
    variables = env.variables()
    command = torchrun.command(job, variables)
    log = output.with_suffix(".log")
    with open(log, "wb") as file:
        added = {**command.added, "TMPDIR": str(output.parent)}  # removed with it
        tie = parent.ending_with(os.getpid(), signal.SIGTERM)
        process = training_process.start(command.quiet, file, {**variables, **added}, tie)
    try:
        code = process.wait()
    finally:
        _stop(process)
    directories = [file.parent for file in output.glob(f"*/*/{history.FILE_NAME}")]
    if code != 0 or not directories:
        text = files.read_end(log).splitlines()
        print_clean("\n".join(text[-_LOG_LINES:]), file=sys.stderr)
        raise LaunchError(
            f"the training on {ranks_text(job.gpus)} ended with exit code {code}; its last lines "
            "are above. Expected steps to measure. Correct what they name; `robomimic-ddp launch "
            f"--config {job.config} --gpus {job.gpus}` shows all that it prints."
        )
    records = history.read(directories[0])
    return [record["log"] for record in records if record["phase"] == "train"]


def _stop(process: subprocess.Popen) -> None:
    """End torchrun, which ends its ranks, if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
