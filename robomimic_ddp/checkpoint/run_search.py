"""Finds the run directory to resume, and writes what a run is found by: `ddp.json`.

A host names its directories by time stamp, so a restarted process cannot make the same name. Each
run writes `ddp.json` into its directory, with its job and the paths that the host's `get_exp_dir`
returned; a restart looks for its job there.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.config import env
from robomimic_ddp.config.env import LaunchEnv
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring import history
from robomimic_ddp.terminal import print_clean

RECORD_NAME = "ddp.json"
REQUEUE_NAME = "requeue"
_NO_ID = "none"
"""TORCHELASTIC_RUN_ID of a torchrun without --rdzv_id."""


class RunRecord:
    """The main rank's `ddp.json` in `directory`: options, plan, newest state and outcome of a run.
    `content` is for JSON.
    """

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory, self.content = directory, content
        self._warned = False

    def write(self) -> None:
        """Replace the file. Raises OSError."""
        with atomic_files.atomic_open(self.directory / RECORD_NAME) as file:
            file.write(json.dumps(self.content, indent=2) + "\n")

    def add(self, **items: Any) -> None:
        """Add `items` and replace the file; warn once if that fails."""
        self.content.update(items)
        try:
            self.write()
        except OSError as error:
            if not self._warned:
                print_clean(
                    f"warning: {RECORD_NAME} could not be written: {error}", file=sys.stderr
                )
            self._warned = True


@dataclass(frozen=True)
class Found:
    """A directory to resume. kind: "state" (has our state), "begun" (made by this job, nothing
    saved yet) or "host" (only the host's `last.pth`).

    paths: the result of `get_exp_dir` for it; empty for kind "host" or an unreadable `ddp.json`.
    """

    directory: Path
    kind: str
    paths: tuple = ()


@dataclass
class Resume:
    """What this rank resumes; only `training/resume.py` changes it. `decide` finds the directory,
    and `saved_state` reads the state when the host makes its run directory.
    """

    found: Found | None = None
    """The directory of the resumed run."""
    by_host: bool = False
    """Whether the host resumes by itself, from its own checkpoint."""
    config_before: bytes | None = None
    """Main rank: the config.json of that run, before the host overwrites it."""
    saved: dict[str, Any] | None = None
    """The saved state, until it is restored."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Saved variables of the host's train() (`api.restored`), with their values before training."""


def write_requeue(directory: Path, content: dict) -> None:
    """Main rank: writes the marker for a script to start the job again."""
    with atomic_files.atomic_open(directory / REQUEUE_NAME) as file:
        file.write(json.dumps(content) + "\n")


def job_name(launch: LaunchEnv) -> str | None:
    """A name that all attempts of one torchrun job share, and other jobs do not; None without
    torchrun.

    The run id; without --rdzv_id, which leaves the same to all jobs, with the agent's host and
    process id: such a job has one rendezvous, so the main rank stays on its node.
    """
    if launch.run_id is None:
        return None
    if launch.run_id != _NO_ID:
        return launch.run_id
    return f"{launch.run_id}@{env.host_name()}:{os.getppid()}"


def find_job(experiment: Path, job: str | None) -> Found | None:
    """Main rank: the directory of an earlier attempt of `job`, or None."""
    for directory in _newest_first(experiment):
        record = read_record(directory)
        if record is None:
            if job is not None and state_file.job_of(directory) == job:
                return Found(directory, "state")
            continue
        if job is not None and record.get("job") == job and "outcome" not in record:
            kind = "state" if state_file.exists(directory) else "begun"
            return Found(directory, kind, _paths(directory, record))
    return None


def find_run(experiment: Path, host_resumes: bool, required: bool = True) -> Found | None:
    """Main rank: the newest run below `experiment` that can be resumed, also by the host's
    `last.pth` if the host can (`host_resumes`).

    If there is none, raises CheckpointError or, unless `required`, returns the newest run that has
    begun and saved nothing (a `last.pth` of its first epoch does not count), or None.
    """
    for directory in _newest_first(experiment):
        if state_file.exists(directory):
            record = read_record(directory)
            return Found(directory, "state", _paths(directory, record or {}))
        if host_resumes and (directory / "last.pth").exists():
            if required or not _in_first_epoch(directory):
                return Found(directory, "host")
    if not required:
        for directory in _newest_first(experiment):
            record = read_record(directory)
            if record is not None and "outcome" not in record:
                return Found(directory, "begun", _paths(directory, record))
        return None
    raise CheckpointError(
        f"nothing to resume: no folder in {experiment} has {state_file.STATE}, which a run writes "
        "at every epoch's end. Expected the output_dir and experiment.name of the run to resume. "
        "Check both, or start without resume."
    )


def _in_first_epoch(directory: Path) -> bool:
    """Whether a run of ours, which has no state, has recorded its first epoch alone."""
    if read_record(directory) is None:
        return False
    try:
        return len({record["epoch"] for record in history.read(directory)}) == 1
    except DataError:
        return False


def relative_paths(directory: Path, paths: Any) -> list:
    """The host's paths, relative to the run directory, for `ddp.json`."""
    return [None if path is None else os.path.relpath(path, directory) for path in paths]


def _paths(directory: Path, record: dict) -> tuple:
    return tuple(
        None if path is None else os.path.normpath(directory / path)
        for path in record.get("paths", ())
    )


def read_record(directory: Path) -> dict | None:
    """The `ddp.json` of a run directory, or None. Warns if it is unreadable beside a state."""
    path = directory / RECORD_NAME
    try:
        record = files.read_json(path)
        names = record.get("paths") if isinstance(record, dict) else None
        is_list = isinstance(names, list) and all(isinstance(name, str | None) for name in names)
        fault = None if is_list and any(names) else "it names no paths"
        if fault is None and any(map(_leaves_run, filter(None, names))):
            fault = "it names paths outside of the run's folder"
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
    if fault is None:
        return record
    if state_file.exists(directory):
        print_clean(
            f"warning: {path} cannot be used ({fault}): ddp.resume=true takes this run's paths "
            "from the host instead, and a restart by torchrun reads the job id from the saved "
            "state.",
            file=sys.stderr,
        )
    return None


def _leaves_run(name: str) -> bool:
    return os.path.isabs(name) or ".." in Path(name).parts


def _newest_first(experiment: Path) -> list[Path]:
    """By name, a time stamp, as hosts do."""
    if not experiment.is_dir():
        return []
    return sorted((path for path in experiment.iterdir() if path.is_dir()), reverse=True)
