"""`robomimic-ddp sweep slurm`: the sbatch file of an array whose tasks are workers of one sweep."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_FILE = """\
#!/usr/bin/env bash
#SBATCH --job-name=sweep-{name}
#SBATCH --array=0-{last}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={cores}
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --output={logs}/slurm-%A_%a.txt
# Each task trains trials of one sweep until none is left. USR1 comes two minutes before the time is
# up, TERM when the task is preempted: its trials save and stop, and the task goes back into the
# queue. A task that is killed leaves its trials to the others.
set -uo pipefail
cd {here} || exit 2

trap ':' USR1 TERM  # this shell waits for srun, whose task gets the signals
srun {command} &
step=$!
while kill -0 "$step" 2>/dev/null; do
    wait "$step" # a trapped signal ends it early
done
wait "$step"
code=$?
if [ "$code" -eq 75 ]; then
    exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""


def file(directory: Path, tasks: int, ranks: int) -> str:
    """The text; `tasks` workers with `ranks` GPUs each."""
    words = [sys.executable, "-m", "robomimic_ddp", "sweep", "run", str(directory)]
    words += ["--ranks-per-trial", str(ranks)] if ranks > 1 else []
    return _FILE.format(
        name="".join(c for c in directory.name if c.isalnum() or c in "-_"),
        last=tasks - 1,
        gpus=ranks,
        cores=8 * ranks,
        logs=directory / "logs",
        here=shlex.quote(str(Path.cwd())),
        command=shlex.join(words),
    )
