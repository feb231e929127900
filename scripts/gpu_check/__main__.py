"""Runs the checks of scripts/gpu_check.sh: a line and a row of JSON for each, as it ends."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

from scripts.arguments import parse
from scripts.gpu_check import one_gpu, several_gpus  # noqa: F401  (they register their checks)
from scripts.gpu_check.checks import CHECKS, Check
from scripts.gpu_check.machine import Failed, Machine, OutOfTime
from tests.hosts import run


def visible_gpus() -> dict[str, str]:
    """The GPUs that this command may use, as CUDA_VISIBLE_DEVICES names them, and their models."""
    listed = "[torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]"
    look = f"import json, torch; print(json.dumps({listed}))"
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    added = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    if chosen is None:
        look = f"import os; os.environ.pop('CUDA_VISIBLE_DEVICES', None); {look}"
    printed = run(None, sys.executable, "-c", look, added=added).stdout
    models = json.loads(printed.splitlines()[-1])
    names = map(str, range(len(models))) if chosen is None else chosen.split(",")
    return dict(zip(names, models))


def left_of(budget: float) -> float:
    """The seconds that are left of the budget, which begins with scripts/gpu_check.sh."""
    now = time.time()
    return budget - (now - float(os.environ.get("GPU_CHECK_BEGAN", now)))


def outcome(check: Check, machine: Machine) -> tuple[str, str]:
    """Run a check; return "ok", "skip" or "FAIL", and its finding."""
    lacking = check.lacking()
    if lacking:
        return "skip", f"not installed: {', '.join(lacking)}"
    try:
        machine.time_left(1.0)
        return "ok", check.run(machine)
    except OutOfTime as spent:
        found = f"; until then: {spent}" if str(spent) else ""
        return "skip", f"the budget was spent before its end{found}"
    except Failed as failed:
        return "FAIL", str(failed)
    except Exception as error:  # one check that breaks hides no other
        return "FAIL", repr(error)


def main() -> int:
    """Returns the exit code: 1 if a check failed."""
    given = parse("gpu_check")
    gpus = dict.fromkeys("01", "cpu") if given.cpu else visible_gpus()
    if not gpus:
        print("error: torch sees no GPU here (`robomimic-ddp doctor` says why); --cpu rehearses.")
        return 1
    count = {"ok": 0, "skip": 0, "FAIL": 0}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder, given.json.open("w") as file:
        machine = Machine(Path(folder), [*gpus], given.cpu, left_of(given.budget))
        about = {"machine": platform.platform(), "gpus": [*gpus.values()], "cpu": given.cpu}
        about |= {"python": platform.python_version(), "torch": torch.__version__}
        print(json.dumps(about), file=file, flush=True)
        for check in CHECKS:
            is_chosen = any(name in check.name for name in given.only.split(","))
            if not is_chosen or check.gpus > len(gpus):
                continue
            began = time.monotonic()
            state, found = outcome(check, machine)
            count[state] += 1
            seconds = round(time.monotonic() - began, 1)
            print(f"{state:4}  {check.name}: {found}  ({seconds:.0f} s)", flush=True)
            row = {"check": check.name, "state": state, "found": found, "seconds": seconds}
            print(json.dumps(row), file=file, flush=True)
    counts = ", ".join(f"{number} {state}" for state, number in count.items())
    print(f"{counts}; rows in {given.json}")
    return int(count["FAIL"] > 0)


if __name__ == "__main__":
    sys.exit(main())
