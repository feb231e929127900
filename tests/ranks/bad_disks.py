"""What can be wrong with the place that a rank writes to, as context managers."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import subprocess
from unittest import mock

_CAPABILITY_VERSION, _DAC_OVERRIDE = 0x20080522, 1  # linux/capability.h


@contextlib.contextmanager
def full(folder):
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    try:
        yield
    finally:
        os.unlink(folder / "filler")


@contextlib.contextmanager
def read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


@contextlib.contextmanager
def over_quota(folder):
    """Quotas cannot be had on any machine: the error is the one that the system gives."""

    def refuse(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with mock.patch.object(os, "fsync", refuse):
        yield


@contextlib.contextmanager
def vanished(folder):
    away = f"{folder}-away"
    os.rename(folder, away)
    try:
        yield
    finally:
        os.rename(away, folder)


@contextlib.contextmanager
def too_large(folder):
    """No file may grow beyond 1 KB, as `ulimit -f` has it: what any user can do to a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # the limit is on a worker's log as well
        os.dup2(nowhere, number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for number, before in zip((1, 2), kept):
            os.dup2(before, number)
        for file in (nowhere, *kept):
            os.close(file)


@contextlib.contextmanager
def not_writable(folder):
    os.chmod(folder, 0o555)
    try:
        with as_any_user():
            yield
    finally:
        os.chmod(folder, 0o755)


@contextlib.contextmanager
def as_any_user():
    """Modes of files mean something to root too, in this thread: it lays down CAP_DAC_OVERRIDE."""
    if os.geteuid() != 0:
        yield
        return
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    effective = sets[0]
    sets[0] = effective & ~(1 << _DAC_OVERRIDE)
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    sets[0] = effective
    try:
        yield
    finally:
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


DISK_FAULTS = (full, read_only)
"""Of a separate file system, which only root may mount."""
FOLDER_FAULTS = (over_quota, vanished, too_large, not_writable)
"""Of any folder, for any user."""
WORDS = {
    full: "No space left on device",
    read_only: "Read-only file system",
    over_quota: "Disk quota exceeded",
    vanished: "No such file or directory",
    too_large: "File too large",
    not_writable: "Permission denied",
}
