"""A run's own state: captured from all ranks, written whole by the main rank, restored on any."""

from __future__ import annotations

from robomimic_ddp.state.capture import capture_model, plain
from robomimic_ddp.state.directories import (
    RECORD_NAME,
    REQUEUE_NAME,
    Found,
    find_job,
    find_run,
    job_name,
    relative_paths,
    write_requeue,
)
from robomimic_ddp.state.files import BEST, PREVIOUS, STATE, export_digest, read, write
from robomimic_ddp.state.restore import restore_model

__all__ = [
    "BEST",
    "PREVIOUS",
    "RECORD_NAME",
    "REQUEUE_NAME",
    "STATE",
    "Found",
    "capture_model",
    "export_digest",
    "find_job",
    "find_run",
    "job_name",
    "plain",
    "read",
    "relative_paths",
    "restore_model",
    "write",
    "write_requeue",
]
