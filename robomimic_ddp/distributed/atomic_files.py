"""Writes files atomically: a crash while writing leaves the previous file."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from robomimic_ddp.config import env, machine
from robomimic_ddp.errors import RobomimicDDPError, WriteError

_numbers = itertools.count(int.from_bytes(os.urandom(4), "little"))


@contextmanager
def atomic_open(
    path: str | os.PathLike, mode: str = "w", follow: bool = False, **kwargs: Any
) -> Iterator[IO]:
    """`open(path, mode, **kwargs)` for writing, in a `with`; `path` appears at its end.

    Until then it is a hidden temporary file in the same folder, which is then flushed to the disk
    and renamed. After an exception in the block `path` is unchanged and the temporary file removed;
    that of a killed process is removed by the next write of the same path on this machine.
    Permissions are those of the old file, else of the umask. A symbolic link is replaced, or, for
    a file of the host's (`follow`), followed. `mode`: w or x with t, b or +.
    """
    if not set(mode) & set("wx"):
        raise ValueError(f"atomic_open writes whole files: mode {mode!r} must contain 'w' or 'x'")
    target = Path(os.path.realpath(path) if follow else os.path.abspath(path))
    is_link = target.is_symlink()
    if follow and target.exists() and not target.is_file():
        with open(path, mode, **kwargs) as file:  # /dev/null, a pipe, a folder: as plain open does
            yield file
        return
    if "x" in mode and target.exists():
        raise FileExistsError(f"{path} exists already")
    remove_left_over(target)
    temporary = temporary_beside(target)
    file = open(temporary, mode.replace("w", "x"), **kwargs)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists() and not is_link:
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    flush_folder(target.parent)


def temporary_beside(target: Path) -> Path:
    """Return a name for a temporary file or folder of this process, in the folder of `target`."""
    return target.with_name(f"{prefix(target)}{os.getpid()}-{next(_numbers)}.tmp")


def prefix(target: Path) -> str:
    """Prefix of `target`'s temporary files; process id, number and ".tmp" follow."""
    return f".{target.name}.{env.host_name()}-"


def remove_left_over(target: Path) -> None:
    """Removes temporary files and folders of `target` whose writer on this machine has ended."""
    pattern = re.compile(re.escape(prefix(target)) + r"(\d+)-\d+\.tmp")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            match = pattern.fullmatch(name)
            if match and not machine.is_alive(int(match.group(1))):
                left = target.with_name(name)
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def flush_folder(folder: Path) -> None:
    """Makes the rename durable, if the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def not_saved(path: Path, error: Exception) -> str:
    """Return the message if `path` could not be written because of `error`."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = (
        "Free disk space" if full else "Check that the folder exists, is writable and has space"
    )
    preserved = (
        "The file that was there before is untouched."
        if os.path.exists(path)
        else "Nothing was written there."
    )
    return f"{path} could not be saved: {error}. {preserved} {remedy}, then try again."


@contextmanager
def must_be_written(path: str | os.PathLike) -> Iterator[None]:
    """For the block: raises an OSError of writing `path` as a WriteError; others pass unchanged."""
    try:
        yield
    except OSError as error:
        target = Path(os.path.realpath(path))
        of_other = error.filename is not None and not (
            os.fspath(error.filename) in (os.fspath(path), os.fspath(target))
            or os.path.basename(os.fspath(error.filename)).startswith(prefix(target))
        )
        if of_other or isinstance(error, (FileExistsError, RobomimicDDPError)):
            raise
        raise WriteError(not_saved(target, error)) from error


@contextmanager
def open_on_main(path: str | os.PathLike, mode: str = "w", **kwargs: Any) -> Iterator[IO]:
    """`open(path, mode)` to write: on the main rank atomic with "w" and "x", and behind what is
    there with "a"; elsewhere discarded. Raises WriteError.
    """
    from robomimic_ddp.distributed import group  # commands write without torch

    if not group.is_main():
        with open(os.devnull, mode.replace("x", "w"), **kwargs) as file:
            yield file
        return
    if "a" not in mode:
        kwargs["follow"] = True
    opener = open if "a" in mode else atomic_open
    with must_be_written(path), opener(path, mode, **kwargs) as file:
        yield file


def copyfile(src: str | os.PathLike, dst: str | os.PathLike) -> str | os.PathLike:
    """`shutil.copyfile`, on the main rank only, and atomic. Returns `dst`. Raises WriteError."""
    from robomimic_ddp.distributed import group

    if not group.is_main():
        return dst
    if os.path.exists(dst) and os.path.samefile(src, dst):
        raise shutil.SameFileError(f"{src!r} and {dst!r} are the same file")
    with open(src, "rb") as source, must_be_written(dst), atomic_open(dst, "wb", True) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return dst
