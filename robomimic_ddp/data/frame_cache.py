"""Decoded frames on a node's disk or in its memory, for all its ranks and jobs.

A `Column` is one file with the values of every step of every episode, a flag for each step that
could not be read, and a checksum for each episode, 0 until the episode is there. Any number of
processes fill it together: each locks one unit of episodes at a time, which only saves double work,
since all write the same bytes. Checksums are written last, so that a process may be killed at any
time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import machine, paths
from robomimic_ddp.data.array_cache import made_together
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.atomic_files import flush_folder
from robomimic_ddp.errors import DataError

logger = logging.getLogger(__name__)
NONE, RAM = "none", "ram"
SUFFIX = ".frames"
SHARED_MEMORY = "/dev/shm"
UNIT_STEPS = 2048
"""Least steps of a unit, which one process fills at a time."""
CHECKED_BYTES = 2**26
"""Most that a rank reads of each column when it opens it, to compare checksums."""
LARGEST_SHARE = 0.5
"""Of the machine's memory, without `ddp.cache_gb`."""
_VERSION = 1
"""Raised when what is stored changes. Old files are then ignored."""
_GIB = 2**30
_LOOK_SECONDS = 0.2
LONGEST_WAIT = 300.0
"""Seconds without a new episode after which a unit is filled in spite of another process's lock."""
_IS_THERE = 1 << 32


def cache_root(cache: str) -> tuple[Path, bool]:
    """The folder that `ddp.cache` names, made if it is missing, and whether it is in memory. Raises
    DataError.
    """
    root, in_memory = paths.expanded(cache), cache.lower() == RAM
    if not in_memory and os.sep not in cache:
        raise DataError(
            f"ddp.cache={cache}: expected none, ram, or a folder's path with a {os.sep!r}, so that "
            "no misspelt word makes a folder, such as /scratch/frames."
        )
    if in_memory:
        root = Path(SHARED_MEMORY) / f"robomimic_ddp-{os.getuid()}"
        if not Path(SHARED_MEMORY).is_dir():
            raise DataError(
                f"ddp.cache=ram needs {SHARED_MEMORY}, which this machine does not have. Give a "
                "folder on a local disk: ddp.cache=PATH."
            )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(root, error) from error
    return root, in_memory


def file_in(root: Path, name: str, described: dict[str, Any]) -> Path:
    """The file of a column: its name and a digest of what it is made from, plain values."""
    digest = hashlib.sha256(json.dumps({"version": _VERSION, **described}).encode()).hexdigest()
    return root / f"{name.replace('/', '-')}-{digest[:24]}{SUFFIX}"


class Column:
    """One value of each step: `values` [S, *item], memory-mapped, steps of all episodes in a row.

    lengths: int64 [E], steps of each episode; starts: int64 [E], its first step; damaged: bool [S],
    steps that could not be read.
    """

    def __init__(self, path: Path, lengths: np.ndarray, item: Sequence[int], kind: type) -> None:
        self.path, self.lengths = path, lengths
        self.starts = np.cumsum(lengths) - lengths
        steps, self._item = int(lengths.sum()), int(np.prod(item)) * np.dtype(kind).itemsize
        self._flags = steps * self._item
        self._sums = -(-(self._flags + steps) // 8) * 8
        size = self._sums + 8 * len(lengths)
        self._made_of = path, lengths, item, kind
        self._file, self._writable = _opened(path, size)
        mapped = mmap.mmap(self._file, size, access=mmap.ACCESS_READ)
        self.values = np.frombuffer(mapped, kind, self._flags // np.dtype(kind).itemsize)
        self.values = self.values.reshape(steps, *item)
        self.damaged = np.frombuffer(mapped, bool, steps, self._flags)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._file)

    def __reduce__(self) -> tuple:
        return Column, self._made_of  # a data worker that is spawned opens the file itself

    def missing(self, rows: np.ndarray) -> np.ndarray:
        """Those of the episodes `rows` that are not there."""
        return rows[self._found()[rows] == 0]

    def _found(self) -> np.ndarray:
        """The checksum of each episode, uint64 [E], 0 for one that is not there."""
        # Not through the map: in full shared memory, reading what is not there ends the process.
        data = os.pread(self._file, 8 * len(self.lengths), self._sums)
        return np.frombuffer(data, np.uint64)

    def bytes_of(self, rows: np.ndarray) -> int:
        """Bytes of the episodes `rows`."""
        return int(self.lengths[rows].sum()) * (self._item + 1)

    def forget_damaged(self, rows: np.ndarray) -> int:
        """Compares the checksums of a random CHECKED_BYTES of the episodes `rows`, of all if one
        differs; forgets those that differ, and returns their number.
        """
        found = self._found()
        there = np.random.default_rng().permutation(rows[found[rows] != 0])
        some = there[np.cumsum(self.lengths[there]) * (self._item + 1) <= CHECKED_BYTES]
        if all(self._checksum(row) == int(found[row]) for row in some):
            return 0
        bad = [row for row in there if self._checksum(row) != int(found[row])]
        self._require_writable(f"{len(bad)} of its episodes are damaged")
        self._note(bad, [0] * len(bad))
        return len(bad)

    def _checksum(self, row: int) -> int:
        steps = slice(self.starts[row], self.starts[row] + self.lengths[row])
        return _checksum(self.values[steps], self.damaged[steps])

    def lock(self, unit: int) -> bool:
        """Whether no other process fills `unit`; locks it then, until `unlock` or this process
        ends.
        """
        self._require_writable("it is not complete")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, unit)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass  # a file system without locks
        return True

    def unlock(self, unit: int) -> None:
        """See `lock`."""
        with suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, unit)

    def write(self, row: int, values: np.ndarray, damaged: np.ndarray) -> int:
        """Writes an episode; returns its checksum, for `note`. Thread-safe. Raises DataError."""
        values = np.ascontiguousarray(values)
        try:
            _write(self._file, values, int(self.starts[row]) * self._item)
            _write(self._file, damaged, self._flags + int(self.starts[row]))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return _checksum(values, damaged)

    def note(self, rows: Sequence[int], checksums: Sequence[int]) -> None:
        """Marks episodes as there, once they are on the disk. Raises DataError."""
        try:
            os.fsync(self._file)
            self._note(rows, checksums)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _note(self, rows: Sequence[int], checksums: Sequence[int]) -> None:
        for row, checksum in zip(rows, checksums):
            _write(self._file, np.array([checksum], np.uint64), self._sums + 8 * int(row))

    def _require_writable(self, why: str) -> None:
        if not self._writable:
            raise _unwritable(self.path, f"it may only be read, and {why}")


def _opened(path: Path, size: int) -> tuple[int, bool]:
    """A descriptor of the file, of `size` bytes, and whether it may be written. The file takes room
    on the disk only as it is filled. Raises DataError.
    """
    try:
        try:
            file, writable = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
        except OSError:
            if not path.is_file() or path.stat().st_size != size:
                raise
            file, writable = os.open(path, os.O_RDONLY), False
        if writable and os.fstat(file).st_size < size:
            os.ftruncate(file, size)
            flush_folder(path.parent)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    return file, writable


def _unwritable(path: Path, error: object) -> DataError:
    return DataError(
        f"the frame cache {path} cannot be written: {error}. Expected a folder on a local disk "
        "with room for the decoded frames. Free some, set ddp.cache to another folder, or train "
        "without it (ddp.cache=none); what is there already is kept and used."
    )


def _write(file: int, values: np.ndarray, at: int) -> None:
    # Not through the map: on a full disk that ends the process by SIGBUS.
    data = memoryview(values.reshape(-1).view(np.uint8))
    while data:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count


def _checksum(values: np.ndarray, damaged: np.ndarray) -> int:
    return zlib.crc32(damaged, zlib.crc32(values.reshape(-1).view(np.uint8))) | _IS_THERE


Write = Callable[[np.ndarray, Sequence[Column]], Iterator[Sequence[int]]]
"""write(rows, columns): writes episodes to these columns; yields the checksums of each, one per
column.
"""
Needs = Sequence[tuple[Sequence[Column], np.ndarray]]
"""Pairs of columns, filled together, and the episodes that a run needs of them."""


def fill_together(
    cache: str,
    most_gib: float,
    opened: Callable[[Path], Iterator[tuple[Sequence[Column], np.ndarray, Write]]],
) -> None:
    """Collective: fills the columns that `opened(folder)` yields, with the episodes that the run
    needs; with `ddp.cache=none` does nothing.

    Every rank makes its share, and takes over what others leave, without a time limit. Raises on
    every rank the DataError of the first rank that has one: no room, no right to write, or data
    that cannot be read.
    """
    if cache.lower() == NONE:
        return
    place, parts = (group.rank(), group.world_size()), []

    def open_all() -> None:
        root, in_memory = cache_root(cache)
        parts.extend(opened(root))
        needs = [(columns, rows) for columns, rows, _ in parts]
        require_room(root, needs, most_gib, in_memory)
        forget_damaged(needs, place)

    def fill_all() -> None:
        for columns, rows, write in parts:
            fill(columns, rows, write, place)

    made_together(open_all)
    if group.is_main():
        logger.info("ddp.cache=%s: frames that are missing there are made now", cache)
    made_together(fill_all)


def size_of(needs: Needs) -> int:
    """Bytes of all that a run needs."""
    return sum(column.bytes_of(rows) for columns, rows in needs for column in columns)


def require_room(root: Path, needs: Needs, most_gib: float, in_memory: bool) -> None:
    """Raises DataError where the needed episodes take more than `most_gib` GiB together with the
    other caches in `root`, or more than is free. most_gib: 0 for no limit but, in memory,
    LARGEST_SHARE of the machine's.
    """
    free = shutil.disk_usage(root).free  # first: other processes may be filling the columns
    needed = size_of(needs)
    missing = sum(c.bytes_of(c.missing(rows)) for columns, rows in needs for c in columns)
    own = {column.path.name for columns, _ in needs for column in columns}
    others = [path for path in root.glob(f"*{SUFFIX}") if path.name not in own]
    held = sum(_bytes_on_disk(path) for path in others)
    found = f"the frame cache in {root} needs {needed / _GIB:.2f} GiB for this run"
    limit, what = most_gib * _GIB, f"ddp.cache_gb={most_gib:g}"
    if not limit and in_memory:
        limit = LARGEST_SHARE * machine.machine_memory()
        what = f"{LARGEST_SHARE:.0%} of this machine's memory ({limit / _GIB:.1f} GiB)"
    remedy = (
        "Fewer cameras, smaller images (observation.image_dim) or fewer episodes take less; or set "
        "ddp.cache to a larger disk, or train without it (ddp.cache=none)."
    )
    if limit and needed + held > limit:
        besides = ""
        if held:
            besides = (
                f", and {len(others)} file(s) of other runs there take {held / _GIB:.2f} GiB "
                "(remove those that no job needs)"
            )
        raise DataError(f"{found}{besides}: more than {what}. Raise ddp.cache_gb. {remedy}")
    if missing > free:
        raise DataError(
            f"{found}, {missing / _GIB:.2f} GiB of them new, and {free / _GIB:.2f} GiB are free "
            f"there. Free some (a container's {SHARED_MEMORY}: --shm-size). {remedy}"
        )


def _bytes_on_disk(path: Path) -> int:
    with suppress(OSError):  # removed meanwhile
        return path.stat().st_blocks * 512
    return 0


def fill(
    columns: Sequence[Column],
    rows: np.ndarray,
    write: Write,
    place: tuple[int, int],
) -> None:
    """Returns once the episodes `rows` are in all of `columns`, by this process or by others.

    place: rank and number of ranks, which begin at different units and then help each other. A
    process that is suspended keeps its locks: after LONGEST_WAIT its work is done again.
    """
    from tqdm import tqdm

    unit_of = columns[0].starts // UNIT_STEPS
    units = np.unique(unit_of[_missing(columns, rows)])
    waiting, refused = deque(np.roll(units, -(place[0] * len(units) // place[1])).tolist()), 0
    # In a terminal: of all processes together.
    quiet = True if place[0] or not waiting else None
    left, since = len(_missing(columns, rows)), time.monotonic()
    there, every = len(rows) - left, {"unit": "episode", "mininterval": 2}
    bar = tqdm(None, "frame cache", len(rows), initial=there, disable=quiet, **every)
    while waiting:
        before, left = left, len(_missing(columns, rows))
        bar.update(before - left)
        if left != before:
            since = time.monotonic()
        unit = waiting.popleft()
        in_unit = rows[unit_of[rows] == unit]
        wanting = [column for column in columns if len(column.missing(in_unit))]
        try:
            overdue = time.monotonic() - since > LONGEST_WAIT
            if all(column.lock(unit) for column in wanting) or overdue:
                refused, todo = 0, _missing(columns, in_unit)
                for column, found in zip(wanting, zip(*write(todo, wanting))):
                    column.note(todo, found)
                continue
        finally:
            for column in wanting:
                column.unlock(unit)
        waiting.append(unit)
        refused += 1
        if refused >= len(waiting):  # others fill all that is left
            time.sleep(_LOOK_SECONDS)
    bar.close()


def _missing(columns: Sequence[Column], rows: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([column.missing(rows) for column in columns]))


def forget_damaged(needs: Needs, place: tuple[int, int]) -> None:
    """Forgets damaged episodes of this rank's share, which `fill` then makes again; prints a
    warning. place: rank and number of ranks.
    """
    for columns, rows in needs:
        for column in columns:
            bad = column.forget_damaged(np.array_split(rows, place[1])[place[0]])
            if bad:
                print(
                    f"warning: {bad} episode(s) of the frame cache {column.path} are damaged, and "
                    "decoded again",
                    file=sys.stderr,
                )
