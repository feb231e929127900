"""A subprocess of a test, started cold or warm: how to wait for it, and what belongs to it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.warm.client import WarmPython

_MARK = "ROBOMIMIC_TEST_RUN"


class ColdJob:
    """A command in a new Python. wait: the exit code, or None where it still runs after `timeout`
    seconds; processes: all of it that runs: itself, its children, and what outlived their parents.
    """

    def __init__(
        self,
        command: list[str],
        *,
        folder: str,
        variables: Mapping[str, str],
        stdout: Path,
        stderr: Path,
    ) -> None:
        self._mark = uuid.uuid4().hex
        with stdout.open("w") as out, stderr.open("w") as err:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**variables, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def processes(self) -> list[psutil.Process]:
        # torchrun gives workers separate sessions: only a variable marks them.
        found = []
        for process in psutil.process_iter():
            try:
                ended = process.status() == psutil.STATUS_ZOMBIE
                if not ended and process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found


class WarmJob:
    """A job of a server; `command` without the interpreter, `ranks` as in `WarmPython.start`."""

    def __init__(self, warm: WarmPython, command: list[str], ranks: int, **files: Any) -> None:
        self._server, self._code = warm, None
        warm.start(command, ranks=ranks, **files)

    def wait(self, timeout: float) -> int | None:
        if self._code is None:
            self._code = self._server.wait(timeout)
        return self._code

    def processes(self) -> list[psutil.Process]:
        return self._server.running()


Job = ColdJob | WarmJob
