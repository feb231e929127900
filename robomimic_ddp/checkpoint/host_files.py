"""The host's own checkpoints, written by the thread that writes states."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from robomimic_ddp.checkpoint import torch_save
from robomimic_ddp.checkpoint.background_writer import Writer
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.terminal import warn


class HostFiles:
    """Main rank: saves and copies the host's files as `torch_save.save` and `atomic_files.copyfile`
    do, while training continues; after the state of the same moment, so that a full disk leaves
    something to resume from.

    An error is a warning when it happens, and raised at the next save, or by `require_written`.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._error: BaseException | None = None

    def save(self, obj: Any, path: str | os.PathLike) -> None:
        """Save `obj` as it is now."""
        self.require_written()
        target = os.path.abspath(path)
        snapshot = self.writer.copy(target, obj)
        write = partial(torch_save.save, snapshot.content, target)
        self.writer.put(target, write, self._failed, snapshot)

    def copyfile(self, src: str | os.PathLike, dst: str | os.PathLike) -> str | os.PathLike:
        """Copy the file once it is written; return `dst`. A backup that is made again and again,
        such as last_bak.pth, is copied by the thread, after the file. Training waits for any other
        copy: of a best.pth no later save may follow.
        """
        source, target = os.path.abspath(src), os.path.abspath(dst)
        if "_bak" in os.path.basename(target) and self.writer.waits(source):
            copy = partial(atomic_files.copyfile, source, target)
            self.writer.put(target, copy, self._failed, source=source)
        else:
            self.writer.flush()
            self.require_written()
            atomic_files.copyfile(source, target)
        return dst

    def require_written(self) -> None:
        """Raise the error of an earlier save, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _failed(self, error: BaseException) -> None:
        if self._error is None:  # the copy of a file that was not written fails, too
            self._error = error
            warn(f"{error} Training ends at the next save.")
