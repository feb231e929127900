"""Where the ranks of a job on one machine meet."""

from __future__ import annotations

import uuid


def on_this_machine() -> list[str]:
    """torchrun's words for a job on one machine: a free port, and a run id of its own.

    `--standalone` says the same in newer torch. That of torch 2.0 has one port for all jobs: a
    second one meets in the first one's store, and is lost with it.
    """
    return ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", f"--rdzv_id={uuid.uuid4()}"]
