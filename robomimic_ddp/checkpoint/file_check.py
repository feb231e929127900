"""Validates the checkpoint that the config names, before a run starts and the host loads it.

Hosts load with torch.load(weights_only=False), which may run code of the file. This runs none.
"""

from __future__ import annotations

import inspect
import os
import pickle
import pickletools
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import IO, Any

import torch

from robomimic_ddp.config import paths
from robomimic_ddp.errors import CheckpointError

_LEGACY_MAGICS = tuple(pickle.dumps(0x1950A86A20F9469CFC6C, protocol) for protocol in range(2, 6))
"""First pickle of a file of torch before 1.6."""
_LEGACY_PICKLES = 5
"""Magic, protocol, system, contents, keys of the storages; then the numbers."""
_ZIP_MAGIC = b"PK\x03\x04"
_SCRIPT = "TorchScript code"
_HARMLESS = re.compile(
    r"builtins\.(bool|bytearray|bytes|complex|dict|float|frozenset|int|list|long|object|range|set"
    r"|slice|str|tuple|unicode|xrange)"
    r"|collections\.(Counter|OrderedDict|defaultdict|deque)|copy_?reg\._reconstructor|typing\.Any"
    r"|_codecs\.encode"
    r"|pathlib\.(_local\.)?(Pure)?(Posix|Windows)?Path"
    r"|numpy\.(dtype|ndarray|dtypes\.\w+DType|bool_?|u?int\d+|float\d+|complex\d+)"
    r"|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)"
    r"|torch\.storage\._(Typed|Untyped)Storage"
    r"|omegaconf\.(dictconfig\.DictConfig|listconfig\.ListConfig|base\.\w*Metadata|nodes\.\w+Node)"
    r"|robomimic\.config(\.\w+)*\.\w*Config"
)
"""Full names that are allowed beside those that torch allows."""
_DAMAGES = (pickle.UnpicklingError, zipfile.BadZipFile)
_UNREADABLE = (RuntimeError, ValueError, KeyError, EOFError, OSError, *_DAMAGES)
_REMEDY = "Check experiment.ckpt_path, or set it to null to train from the beginning."


def check(path: Any, algo_name: str, trusted: bool = False) -> None:
    """Raises CheckpointError if `path` is no checkpoint of this algorithm, or, unless `trusted`,
    contains more than tensors, plain values and the host's config. Reads the whole file.
    """
    file = Path(os.path.expanduser(str(path)))
    shown = f"experiment.ckpt_path={path}"
    if not file.exists():
        raise CheckpointError(
            f"{shown}: there is no such file (looked for {file.absolute()}). {_REMEDY}"
        )
    if file.is_dir():
        raise CheckpointError(
            f"{shown} is a folder: name the file in it, such as {file}/models/model_epoch_50.pth."
        )
    if trusted:
        _is_legacy(file, shown)
        return
    content = read_known(file, shown)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not model:
        raise CheckpointError(
            f"{shown} contains {contents(content)}, not a robomimic checkpoint (which has "
            f'"model", "config", "algo_name"). {_REMEDY}'
        )
    written_by = content.get("algo_name", algo_name)
    if written_by != algo_name:
        raise CheckpointError(
            f"{shown} was written by the algorithm {written_by!r}, and this run trains "
            f"{algo_name!r}: their nets have nothing in common. {_REMEDY}"
        )
    broken = [name for name, tensor in _tensors(model) if _is_broken(tensor)]
    if broken:
        raise CheckpointError(
            f"{shown} contains NaN or infinity in {len(broken)} tensor(s), such as {broken[0]}: "
            "that training had diverged, and so would this one at its first step. Use an earlier "
            "checkpoint, or set experiment.ckpt_path to null to train from the beginning."
        )


def contents(content: Any) -> str:
    """Describes the contents of a file that is no checkpoint, for its error."""
    if not isinstance(content, dict):
        return type(content).__name__
    if "model" not in content:
        return str(list(content)[:6])
    model = content["model"]
    kind = "null" if model is None else type(model).__name__
    return 'an empty "model"' if model == {} else f'{kind} as its "model"'


def _tensors(nest: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(dotted name, tensor) of nested dicts and sequences."""
    if isinstance(nest, torch.Tensor):
        yield name, nest
    elif isinstance(nest, (dict, list, tuple)):
        parts = nest.items() if isinstance(nest, dict) else enumerate(nest)
        for key, part in parts:
            yield from _tensors(part, f"{name}.{key}" if name else str(key))


def _is_broken(tensor: torch.Tensor) -> bool:
    """Whether it has NaN, or infinity beside numbers: attention masks have 0 and -inf."""
    if not tensor.is_floating_point():
        return False
    finite = torch.isfinite(tensor)
    if finite.all():
        return False
    return bool(torch.isnan(tensor).any() or tensor[finite].any())


def does_not_fit(path: Any, error: BaseException) -> CheckpointError | None:
    """The CheckpointError for an `error` of loading `path` into the model; None for another."""
    text = str(error)
    remedy = (
        "Use the config that it was trained with (the same observations, action keys and net "
        "sizes), or another checkpoint."
    )
    if path is None:
        return None
    if "Error(s) in loading state_dict" in text:
        lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
        return CheckpointError(
            f"experiment.ckpt_path={path} does not fit this run's nets: {lines[0][:300]}"
            f"{f' (and {len(lines) - 1} more)' if len(lines) > 1 else ''} {remedy}"
        )
    if any(frame.f_code.co_name == "deserialize" for frame, _ in walk_tb(error.__traceback__)):
        return CheckpointError(
            f"experiment.ckpt_path={path} does not contain what this run's algorithm saves "
            f"({type(error).__name__}: {text[:200]}). {remedy}"
        )
    return None


def _is_legacy(file: Path, shown: str) -> bool:
    """Whether torch would read a file as one before 1.6, by its first bytes."""
    try:
        with open(paths.regular(file), "rb") as opened:
            start = opened.read(max(map(len, _LEGACY_MAGICS)))
    except OSError as error:
        raise CheckpointError(f"{shown} cannot be read: {error}. {_REMEDY}") from error
    is_legacy = start.startswith(_LEGACY_MAGICS) and not tarfile.is_tarfile(file)
    if not is_legacy and not (start.startswith(_ZIP_MAGIC) and zipfile.is_zipfile(file)):
        kind = "cut off while it was written" if start.startswith(b"PK") else "of another kind"
        raise CheckpointError(
            f"{shown} is no checkpoint of torch: the file is damaged, {kind}, or empty "
            f"({file.stat().st_size} bytes). It was not loaded. Use last_bak.pth beside it, or "
            "an earlier one."
        )
    return is_legacy


def read_known(file: Path, shown: str) -> Any:
    """The contents of a checkpoint, memory-mapped if possible. Raises CheckpointError, which names
    it as `shown`, for a damaged file and for one with objects that could run any program.
    """
    from torch._weights_only_unpickler import _get_allowed_globals  # private: needed here only

    legacy = _is_legacy(file, shown)
    try:
        trusted = set(_get_allowed_globals())
        asked = set(_legacy_globals(file) if legacy else _zip_globals(file)) - trusted
        unknown = sorted(name for name in asked if not _HARMLESS.fullmatch(name))
        if unknown:
            raise CheckpointError(
                f"{shown} asks for {', '.join(unknown[:5])}"
                f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''} when it is loaded. "
                "Expected tensors, numbers, text and the host's config: anything else could run "
                "any program. It was not loaded. If you trust its source, train with "
                "ddp.trust_checkpoint=true; else use another checkpoint."
            )
        can_map = "mmap" in inspect.signature(torch.load).parameters and not legacy
        mapped = {"mmap": True} if can_map else {}
        return torch.load(file, map_location="cpu", weights_only=False, **mapped)
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{shown} cannot be read: its path is not UTF-8, so torch cannot open it. Rename the "
            "file or its folder."
        ) from error
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{shown} cannot be read ({(str(error).splitlines() or [''])[0][:200]}): the file is "
            "damaged. Use last_bak.pth beside it, or an earlier one."
        ) from error


def _zip_globals(file: Path) -> Iterator[str]:
    """The globals of every pickle in the archive, whichever torch reads."""
    found = False
    with zipfile.ZipFile(file) as members:
        for member in members.infolist():
            name = member.filename.lower()
            if name.endswith("constants.pkl"):
                yield _SCRIPT
            if name.endswith(".pkl"):
                found = found or name.endswith("/data.pkl")
                yield from globals_of(members.read(member))
    if not found:
        raise ValueError("there is no data.pkl in it")


def _legacy_globals(file: Path) -> Iterator[str]:
    with open(file, "rb") as opened:
        for _ in range(_LEGACY_PICKLES):
            yield from globals_of(opened)


def globals_of(pickled: bytes | IO[bytes]) -> list[str]:
    """ "module.name" of all globals of the next pickle, which is not run; "?" if computed."""
    found: list[str] = []
    texts: list[str] = []  # the last two on the stack
    memo: dict[int, str | None] = {}
    for code, value, _ in pickletools.genops(pickled):
        if code.name in ("GLOBAL", "INST"):
            found.append(value.replace(" ", ".").replace("__builtin__.", "builtins."))
        elif code.name == "STACK_GLOBAL":
            found.append(".".join(texts) if len(texts) == 2 else "?")
        elif code.name.startswith("EXT"):
            found.append("?")
        if "UNICODE" in code.name:
            texts = [*texts[-1:], value]
        elif code.name.endswith("GET") and memo.get(int(value)) is not None:
            texts = [*texts[-1:], memo[int(value)] or ""]
        elif code.name == "MEMOIZE" or code.name.endswith("PUT"):
            place = len(memo) if code.name == "MEMOIZE" else int(value)
            memo[place] = texts[-1] if texts else None
        elif code.name != "FRAME":
            texts = []
    return found
