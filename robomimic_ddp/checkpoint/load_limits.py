"""Limits on what a checkpoint from elsewhere may become in memory.

1,000 bytes can name a tensor of terabytes, a list of 2**40 values, or a tuple so deep that its hash
ends the process.
"""

from __future__ import annotations

import io
import os
import pickletools
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from robomimic_ddp import files

_MOST_VALUES = 10**7
_SPARE = 16 * 2**20
"""Bytes that contents may have in addition to ten times those of the file."""
_TYPES_ONLY = ("list", "dict", "tuple", "str", "int", "float", "bool")
"""Types that OmegaConf's metadata names, and that no pickle of plain values calls."""
_OF_A_LENGTH = ("bytes", "bytearray", "range", "xrange")
"""Callables whose number is the length of their result."""
_PUTS = ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE")
_GETS = ("BINGET", "LONG_BINGET", "GET")
_CALLS = ("REDUCE", "NEWOBJ")
_NESTS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", *_CALLS)
_CHANGES = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")
"""Instructions that change the value below what they take."""
_REFUSED = ("INST", "OBJ", "NEWOBJ_EX")


def is_archive(file: Path) -> bool:
    """Return whether `file` is a zip archive; `zipfile.is_zipfile` raises for some damaged ones."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return False


def require_file(file: Path, legacy: bool) -> None:
    """Raise an error, before torch reads `file`, if it could not be read within the limits."""
    if not legacy:
        _require_archive(file)
        content = torch._C.PyTorchFileReader(str(file)).get_record("data.pkl")
        return _require_pickle(io.BytesIO(content), len(content))
    with files.opened(file) as raw, io.BufferedReader(raw) as opened:
        for _ in range(5):  # magic number, version, system, content, names of storages
            _require_pickle(opened, os.fstat(raw.fileno()).st_size)


def _require_archive(file: Path) -> None:
    """Raise ValueError unless `file` is one uncompressed zip archive, as torch.save writes it:
    torch would read another central directory, or map compressed bytes as numbers.
    """
    with files.opened(file) as raw:
        size = os.fstat(raw.fileno()).st_size
        raw.seek(-42, os.SEEK_END)
        locator, end = raw.read(20), raw.read(22)
        with zipfile.ZipFile(io.BufferedReader(raw)) as archive:
            entries = archive.infolist()
    of_64_bits = locator[:4] == b"PK\6\7"
    if (
        min((entry.header_offset for entry in entries), default=1) > 0
        or end[:4] != b"PK\5\6"
        or (of_64_bits and struct.unpack_from("<Q", locator, 8)[0] != size - 98)
    ):
        raise ValueError("it has bytes before or after its archive")
    if any(entry.compress_type or entry.file_size != entry.compress_size for entry in entries):
        raise ValueError("its archive is compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("parts of its archive overlap")


def require_checksums(file: Path) -> None:
    """Raise ValueError if a part of an archive is not what was written: torch does not compare its
    checksums. All are 0 where `torch.serialization.set_crc32_options` has left them out.
    """
    with files.opened(file) as raw, zipfile.ZipFile(io.BufferedReader(raw)) as archive:
        has_checksums = any(entry.CRC for entry in archive.infolist())
        changed = archive.testzip() if has_checksums else None
    if changed is not None:
        raise ValueError(f"the checksum of {changed} is wrong")


class _Item:
    """What is known of a value on the unpickler's stack.

    height: levels of tuples in it; weight: bytes of its text and its values; number: its largest
    number; name: of a function or text.
    """

    __slots__ = ("height", "weight", "number", "name")

    def __init__(self, arg: Any = None) -> None:
        text = isinstance(arg, (str, bytes, bytearray))
        self.height, self.weight = 0, len(arg) if text else 1
        self.number = abs(arg) if isinstance(arg, int) else 0
        self.name = arg if text else ""


def _require_pickle(opened: Any, size: int) -> None:
    """Raise ValueError or UnpicklingError for a program that fills the memory or the stack of what
    runs it.
    """
    stack: list[_Item | None] = []  # None: a mark
    memo: dict[int, _Item] = {}
    copied = 0
    for code, arg, _ in pickletools.genops(opened):
        name = code.name
        if name in _PUTS:
            memo[len(memo) if arg is None else arg] = stack[-1]
        elif name in _GETS:
            stack.append(memo[arg])
        elif name == "MARK":
            stack.append(None)
        elif not code.stack_before:
            stack += [_Item(arg)] * len(code.stack_after)
        elif name in _REFUSED:
            raise ValueError(f"it has the instruction {name}")
        else:
            operands = _take(stack, code.stack_before)
            changes = name in _CHANGES
            item = operands[0] if changes else _Item()
            for part in operands[changes:]:
                item.weight += part.weight
            if name in _NESTS:
                item.height = 1 + max([part.height for part in operands], default=0)
                item.number = max([part.number for part in operands], default=0)
                if item.height > files.MOST_DEPTH:
                    raise files.too_deep()
            if name in _CALLS:
                copied += _copied(operands[0].name, operands[1])
                if copied > 10 * size + _SPARE:
                    raise ValueError(f"it copies more than {copied} bytes")
            elif name == "STACK_GLOBAL":
                item.name = operands[1].name
            stack += [item] * len(code.stack_after)


def _take(stack: list[_Item | None], before: list[Any]) -> list[_Item]:
    """Remove from `stack` what an instruction takes, and return it without the mark."""
    start = len(stack) - len(before)
    if pickletools.markobject in before:
        marks = (index for index in reversed(range(len(stack))) if stack[index] is None)
        start = next(marks, -1) - before.index(pickletools.markobject)
    if start < 0:
        raise ValueError("it takes from an empty stack")
    operands = [item for item in stack[start:] if item is not None]
    del stack[start:]
    return operands


def _copied(name: str, arguments: _Item) -> int:
    """Return how many bytes or values a call makes. Raises UnpicklingError for one that no pickle
    of plain values has.
    """
    name = name.rpartition(" ")[2]
    if not name or name in _TYPES_ONLY or name.endswith(("Storage", "Tensor")):
        raise UnpicklingError(f"GLOBAL {name or 'what'} is not allowed to be called")
    return arguments.weight + (arguments.number if name in _OF_A_LENGTH else 0)


def require_content(content: Any, file: Path) -> None:
    """Raise ValueError if what was read from `file` is deeper than files may be,
    contains itself, would be more than ten times as large once written out, or has a tensor that is
    not a plain array of numbers.
    """
    size = file.stat().st_size
    _, values, numbers = _measure(content, 0, {})
    if values > _MOST_VALUES:
        raise ValueError(f"it has {values:,} values, in lists that it repeats")
    if numbers > 10 * size + _SPARE:
        raise ValueError(f"its tensors have {numbers:,} bytes, and the file {size:,}")


def _measure(value: Any, level: int, known: dict[int, tuple[int, int, int]]) -> tuple:
    """Return the levels, the values and the bytes of tensors in `value`."""
    if level > files.MOST_DEPTH:
        raise files.too_deep()
    parts: Any = ()
    numbers = 0
    if isinstance(value, torch.Tensor):
        _require_plain(value)
        numbers = value.numel() * value.element_size()
        parts = vars(value).values()
    elif isinstance(value, dict):
        parts = (*value, *value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = [part for name, part in vars(value).items() if name != "_parent"]  # of OmegaConf
    if not parts:
        return 0, 1, numbers
    if id(value) not in known:
        heights, counts, bytes_of = zip(*(_measure(part, level + 1, known) for part in parts))
        known[id(value)] = 1 + max(heights), 1 + sum(counts), numbers + sum(bytes_of)
    if level + known[id(value)][0] > files.MOST_DEPTH:
        raise files.too_deep()
    return known[id(value)]


def _require_plain(tensor: torch.Tensor) -> None:
    kinds = {
        "sparse": tensor.layout is not torch.strided,
        "meta": tensor.device.type == "meta",
        "nested": tensor.is_nested,
        "quantized": tensor.is_quantized,
    }
    for kind in (kind for kind, matches in kinds.items() if matches):
        raise ValueError(f"it has a {kind} tensor; expected plain ones")
