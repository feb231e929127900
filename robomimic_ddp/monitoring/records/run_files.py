"""Names of files in a run directory that several rooms read."""

from __future__ import annotations

RECORD = "ddp.json"
"""Its record, see checkpoint/run_record.py."""
STATE = "ddp_state.pth"
"""Its newest state, see checkpoint/state_file.py."""
LOCK = "ddp.lock"
"""What a training has locked, see checkpoint/lock.py."""
REQUEUE = "requeue"
"""The marker for a script to start the job again."""
