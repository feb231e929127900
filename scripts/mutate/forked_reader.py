"""The process that reads for a rank, forked, so that it runs the mutant too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class ForkedReader:
    """In place of `subprocess.Popen` in `loaders/remote.py`."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], **_: Any) -> None:
        from robomimic_ddp.data.rlds.pipeline import process

        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.closerange(3, pass_fds[0])
                os.closerange(pass_fds[0] + 1, 4096)
                process.main(command[3:])
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise OSError("the process has not ended")
            time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
