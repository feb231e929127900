"""Runs the entries on one bad input after the other, each in a fork of one process.

    python -m tests.bad_input.runner CASES.json ANSWERS.json

CASES: a list of {arguments, environ, entry, folder, shared}. ANSWERS, in their order: the exit
code, both streams, and the digests of the folder's files before and after. An exception that an
entry lets through is exit code 1 with its traceback on stderr, as Python has it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import robomimic.scripts.train as host_train

from robomimic_ddp import train_rlds
from tests.bad_input.table import TIMED_OUT, contents

CASE_SECONDS = 25.0


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """One case in a fork of this process, which has imported what is slow to import."""
    folder, shared = Path(case["folder"]), Path(case["shared"])
    before, untouched = contents(folder), contents(shared)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os._exit(enter_as(case, out, err))
        code = _wait(child)
        texts = {}
        for name, file in (("stdout", out), ("stderr", err)):
            file.seek(0)
            texts[name] = file.read()
    assert contents(shared) == untouched, "a shared dataset was changed"
    return {"code": code, **texts, "before": before, "after": contents(folder)}


def enter_as(case: Mapping[str, Any], out: IO, err: IO) -> int:
    """In the child: the entry's exit code, in the case's environment and folder."""
    os.setsid()
    os.environ.update(case["environ"])
    os.chdir(case["folder"])
    for number, file in ((1, out), (2, err)):
        os.dup2(file.fileno(), number)
    code: Any = 0
    try:
        enter(case)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    sys.__stdout__.flush()
    sys.__stderr__.flush()
    return code if isinstance(code, int) else int(code is not None)


def _wait(child: int) -> int:
    """The child's exit code; it and all that it started are killed when its time runs out."""
    deadline = time.monotonic() + CASE_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


def enter(case: Mapping[str, Any]) -> None:
    """Calls the entry that the case asks for."""
    if case["entry"] == "train_rlds":
        train_rlds.main(case["arguments"])
        return
    options = {name: None for name in ("algo", "name", "dataset")}
    host_train.main(
        argparse.Namespace(config=case["arguments"][0], debug=False, resume=False, **options)
    )


def main() -> None:
    cases, answers = map(Path, sys.argv[1:])
    done = [run(case) for case in json.loads(cases.read_text())]
    answers.write_text(json.dumps(done))


if __name__ == "__main__":
    main()
