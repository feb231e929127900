"""The state of a run: captured from all ranks, written by the main rank, restored on all."""

from __future__ import annotations

from robomimic_ddp.checkpoint.background_writer import EXIT_SECONDS, Writer
from robomimic_ddp.checkpoint.capture import capture_model, plain
from robomimic_ddp.checkpoint.host_files import HostFiles
from robomimic_ddp.checkpoint.lock import DirectoryInUse, take
from robomimic_ddp.checkpoint.restore import restore_model
from robomimic_ddp.checkpoint.run_record import (
    RunRecord,
    relative_paths,
    write_requeue,
)
from robomimic_ddp.checkpoint.run_search import FoundRun, find_job, find_run, job_name
from robomimic_ddp.checkpoint.state_file import (
    BEST,
    PREVIOUS,
    STATE,
    read,
    require_complete,
    restoring,
    write,
)
