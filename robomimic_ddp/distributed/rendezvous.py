"""Where the ranks of a job on one machine meet."""

from __future__ import annotations

import uuid


def on_this_machine(run_id: str | None = None) -> list[str]:
    """torchrun's arguments for a job on one machine: a free port, and a unique run id (if None).

    Newer torch has `--standalone` for it. In torch 2.0 that uses one port for all jobs: a second
    one would join the first one's store.
    """
    run_id = run_id or str(uuid.uuid4())
    return ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", f"--rdzv_id={run_id}"]
