"""Finds the run directory to resume.

A host names its directories by time stamp, so a restarted process cannot make the same name. Each
run writes `ddp.json` into its directory (`run_record`), with its job and the paths that the host's
`get_exp_dir` returned; a restart looks for its job there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.checkpoint.run_record import paths_in, read_record
from robomimic_ddp.config import env
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring.records import history

_NO_ID = "none"
"""TORCHELASTIC_RUN_ID of a torchrun without --rdzv_id."""


@dataclass(frozen=True)
class FoundRun:
    """A directory to resume. kind: "state" (has our state), "begun" (made by this job, nothing
    saved yet) or "host" (only the host's `last.pth`).

    paths: the result of `get_exp_dir` for it; empty for kind "host" or an unreadable `ddp.json`.
    """

    directory: Path
    kind: str
    paths: tuple = ()


def job_name(launch: LaunchEnv) -> str | None:
    """Return a name that all attempts of one torchrun job share, and other jobs do not; None
    without torchrun.

    The run id; without --rdzv_id, which leaves the same to all jobs, with the agent's host, process
    id and start (in containers of one name every agent may be process 1): such a job has one
    rendezvous, so the main rank stays on its node.
    """
    if launch.run_id is None:
        return None
    if launch.run_id != _NO_ID:
        return launch.run_id
    return f"{launch.run_id}@{env.launcher() or f'{env.host_name()}:{os.getppid()}'}"


def find_job(
    experiment: Path, job: str | None, launcher: str | None = None, finished: bool = False
) -> FoundRun | None:
    """Main rank: return the directory of an earlier attempt of `job`, or of any that `launcher`
    (`env.launcher`) has started, or None. `finished`: also one that has finished, if it has a
    state.
    """
    for directory in _newest_first(experiment):
        record = read_record(directory) or {}
        is_ours = job is not None and record.get("job") == job
        is_ours = is_ours or (launcher is not None and record.get("launcher") == launcher)
        if is_ours:
            kind = "state" if state_file.exists(directory) else "begun"
            if "outcome" not in record or (finished and kind == "state"):
                return FoundRun(directory, kind, paths_in(directory, record))
    return None


def find_run(experiment: Path, host_resumes: bool, required: bool = True) -> FoundRun | None:
    """Main rank: return the newest run below `experiment` that can be resumed, also by the host's
    `last.pth` if the host can (`host_resumes`).

    If there is none, raises CheckpointError or, unless `required`, returns the newest run that has
    begun and saved nothing (a `last.pth` of its first epoch does not count), or None.
    """
    for directory in _newest_first(experiment):
        if state_file.exists(directory):
            record = read_record(directory)
            return FoundRun(directory, "state", paths_in(directory, record or {}))
        if host_resumes and (directory / "last.pth").exists():
            if required or not _in_first_epoch(directory):
                return FoundRun(directory, "host")
    if not required:
        for directory in _newest_first(experiment):
            record = read_record(directory)
            if record is not None and "outcome" not in record:
                return FoundRun(directory, "begun", paths_in(directory, record))
        return None
    newest = next((f"; {path.name} ended before" for path in _newest_first(experiment)), "")
    raise CheckpointError(
        f"nothing to resume: no folder in {experiment} has {state_file.STATE}, which a run writes "
        f"at its first epoch's end{newest}. Expected the output_dir and experiment.name of the run "
        "to resume. Check both, or set ddp.resume=auto, which begins a new run where there is none."
    )


def _in_first_epoch(directory: Path) -> bool:
    """Return whether a run of ours, which has no state, has recorded its first epoch alone."""
    if read_record(directory) is None:
        return False
    try:
        return len({record["epoch"] for record in history.read(directory)}) == 1
    except DataError:
        return False


def _newest_first(experiment: Path) -> list[Path]:
    """Return the folders of runs by name, which is a time stamp, the newest first."""
    if not experiment.is_dir():
        return []
    return sorted((path for path in experiment.iterdir() if path.is_dir()), reverse=True)
