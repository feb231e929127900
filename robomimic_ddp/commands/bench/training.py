"""Runs the user's training through torchrun, and returns the log of each epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.bench.report import ranks_text
from robomimic_ddp.commands.launch import torchrun
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import env
from robomimic_ddp.errors import LaunchError
from robomimic_ddp.monitoring import history
from robomimic_ddp.terminal import print_clean

_LOG_LINES = 15


def train(job: Settings, output: Path) -> list[Mapping[str, float]]:
    """Return the train log of each epoch. Raises LaunchError if the training fails."""
    variables = env.variables()
    command = torchrun.command(job, variables)
    log = output.with_suffix(".log")
    with open(log, "wb") as file:
        added = {**command.added, "TMPDIR": str(output.parent)}  # removed with it
        process = training_process.start(command.quiet, file, {**variables, **added})
    try:
        code = process.wait()
    finally:
        training_process.stop(process)
    directories = [file.parent for file in output.glob(f"*/*/{history.FILE_NAME}")]
    if code != 0 or not directories:
        text = files.read_end(log).splitlines()
        print_clean("\n".join(text[-_LOG_LINES:]), file=sys.stderr)
        raise LaunchError(
            f"the training on {ranks_text(job.gpus)} ended with exit code {code}, so there is no "
            "speed to measure; its last lines are above. To see its complete output, run "
            f"`robomimic-ddp launch --config {job.config} --gpus {job.gpus}`."
        )
    records = history.read(directories[0])
    return [record["log"] for record in records if record["phase"] == "train"]
