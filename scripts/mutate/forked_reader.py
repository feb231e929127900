"""The process that reads for a rank, forked, so that it runs the mutant too."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from typing import Any


class ForkedReader:
    """In place of `subprocess.Popen` in `loaders/remote.py`."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], **_: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_read, args=(command[3:], pass_fds[0]))
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError("the process has not ended")
        return self.returncode


def _read(arguments: list[str], channel: int) -> None:
    from robomimic_ddp.data.rlds.pipeline import process

    os.closerange(3, channel)
    os.closerange(channel + 1, 4096)
    process.main(arguments)
