"""Reads files that others have written: regular files only, with limits.

A pipe may never end, and a few lines of YAML with aliases take all memory of whatever walks the
result.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 16 * 2**20
_MOST_YAML_BYTES = 2**16
"""PyYAML takes seconds for as much."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular(path: Any, most: float = float("inf")) -> Path:
    """Return `path`, if it is a regular file, or a link to one, of at most `most` bytes. Raises
    OSError for anything else.
    """
    with opened(path) as file:
        _require_size(file, path, most)
    return Path(path)


def opened(path: Any) -> IO[bytes]:
    """Open a regular file to read its bytes, unbuffered. Raises OSError, for anything else too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    except ValueError as error:  # a NUL character
        raise OSError(f"{str(path)!r} is not a path: {error}") from error
    return os.fdopen(_require_regular(descriptor, path), "rb", buffering=0)


def opened_to_write(path: Any, mode: str = "ab", **kwargs: Any) -> IO:
    """`open(path, mode)` of a file of ours, or a new one, by default to write behind what is there.
    Raises OSError for anything else under its name, a link too.
    """

    def opener(path: str, of_mode: int) -> int:
        try:
            flags = of_mode | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for its reader
            return _require_regular(os.open(path, flags, 0o666), path)
        except OSError as error:
            kind = {errno.ELOOP: "a link", errno.ENXIO: "a pipe"}.get(error.errno or 0)
            if kind is None:
                raise
            raise OSError(f"{path} is {kind}: a file is needed") from error

    return open(path, mode, opener=opener, **kwargs)


def try_lock(file: IO, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file (`flock`), until all copies of it are closed; return False if another
    process has locked it. Raises OSError on a file system without locks.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Any) -> bool:
    """Return whether a process has locked a file: False without such a file, or on a file system
    without locks.
    """
    try:
        with opened(path) as file:
            return not try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False


def require_no_link(path: Any) -> None:
    """Raise OSError for a link to a file, or to nothing, where something is to be written. Devices
    may be linked, as /dev/stdout is.
    """
    if os.path.islink(path) and (os.path.isfile(path) or not os.path.exists(path)):
        raise OSError(f"{path} is a link: a file is needed")


def read_bytes(path: Any, most: int = MOST_BYTES) -> bytes:
    """Return the contents of a file of at most `most` bytes. Raises OSError."""
    with opened(path) as file:
        _require_size(file, path, most)
        return file.read()


def read_end(path: Any, most: int = 2**20) -> str:
    """Return the text of the last `most` bytes of a log, which may be large. Raises OSError."""
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


def read_text(path: Any, most: int = MOST_BYTES) -> str:
    """Return the text of a UTF-8 file of at most `most` bytes. Raises OSError or
    UnicodeDecodeError, which is a ValueError.
    """
    return read_bytes(path, most).decode()


def read_json(path: Any) -> Any:
    """Return the value in a JSON file. Raises OSError, or ValueError as `parse_json`."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """Return the value of JSON text. Raises ValueError if it is none, has a key twice in an object,
    or is too deep for Python.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_yaml(path: Any) -> Any:
    """Return the value in a YAML file. Raises OSError, or ValueError as `parse_yaml`."""
    return parse_yaml(read_text(path, _MOST_YAML_BYTES))


def parse_yaml(text: str) -> Any:
    """Return the plain value of YAML text. Raises ValueError if it is none, has an alias or a
    tag, a key twice or one that is not text, or is too deep for Python.
    """
    import yaml  # here, so that the launcher can name a Python that lacks it

    try:
        for event in yaml.parse(text, yaml.SafeLoader):  # nothing is composed yet
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"it has the alias *{event.anchor}: write the value out")
            if getattr(event, "tag", None) is not None:
                raise ValueError(f"it has the tag {event.tag}, which is not read here")
        return yaml.load(text, _loader())
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


@functools.cache
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            pairs = [(self.construct_object(key, True), None) for key, _ in node.value]
            for key, _ in pairs:
                if not isinstance(key, str):
                    raise ValueError(f"it has the key {key!r}: expected text")
            _without_duplicates(pairs)
            return super().construct_mapping(node, deep)

    return Loader


def _require_size(file: IO, path: Any, most: float) -> None:
    if os.fstat(file.fileno()).st_size > most:
        raise OSError(f"{path} has more than {most / 2**20:g} MiB, too much for a file of its kind")


def _require_regular(descriptor: int, path: Any) -> int:
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise OSError(f"{path} is {_KINDS.get(kind, 'something else')}: a file is needed")
    return descriptor


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"it has the key {key!r} twice, and one would be lost")
        mapping[key] = value
    return mapping
