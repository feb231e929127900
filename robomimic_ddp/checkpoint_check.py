"""Looks over a checkpoint that the config names, before a run begins and before the host loads it.

Hosts load with torch.load(weights_only=False), which runs whatever code a file asks for; this look
runs none.
"""

from __future__ import annotations

import inspect
import os
import pickle
import pickletools
import zipfile
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

from robomimic_ddp import paths
from robomimic_ddp.errors import CheckpointError

_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How a file of torch before 1.6 begins; read by the host, not looked into here."""
_HARMLESS = ("numpy._core.multiarray.", "numpy.core.multiarray.", "numpy.dtype", "numpy.ndarray")
_RUN_PROGRAMS = {"builtins", "os", "posix", "nt", "pty", "subprocess", "sys", "shutil", "runpy"} | {
    "importlib", "socket", "ctypes", "code", "webbrowser", "pickle", "operator", "functools"
}  # fmt: skip
_DAMAGES = (pickle.UnpicklingError, zipfile.BadZipFile)
_UNREADABLE = (RuntimeError, ValueError, KeyError, EOFError, OSError, *_DAMAGES)
_REMEDY = "Check experiment.ckpt_path, or set it to null to train from the beginning."


def check(path: Any, algo_name: str) -> None:
    """Raises CheckpointError for a `path` that holds no checkpoint of this algorithm.

    Not collective. Tensors are mapped, not read.
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
    if _is_legacy(file, shown):
        return
    content = read_known(file, shown)
    if content is None:
        return
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not model:
        found = list(content) if isinstance(content, dict) else type(content).__name__
        found = 'an empty "model"' if model == {} else found
        raise CheckpointError(
            f'{shown} holds {found}, not a robomimic checkpoint (which has "model", "config", '
            f'"algo_name"). {_REMEDY}'
        )
    written_by = content.get("algo_name", algo_name)
    if written_by != algo_name:
        raise CheckpointError(
            f"{shown} was written by the algorithm {written_by!r}, and this run trains "
            f"{algo_name!r}: their nets have nothing in common. {_REMEDY}"
        )


def does_not_fit(path: Any, error: BaseException) -> CheckpointError | None:
    """`error`, raised while the host put the contents of `path` into its model, as one clear error;
    None if it is another.
    """
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
            f"experiment.ckpt_path={path} does not hold what this run's algorithm saves "
            f"({type(error).__name__}: {text[:200]}). {remedy}"
        )
    return None


def _is_legacy(file: Path, shown: str) -> bool:
    try:
        with open(paths.regular(file), "rb") as opened:
            start = opened.read(len(_LEGACY_MAGIC))
    except OSError as error:
        raise CheckpointError(f"{shown} cannot be read: {error}. {_REMEDY}") from error
    if not zipfile.is_zipfile(file) and start != _LEGACY_MAGIC:
        kind = "cut off while it was written" if start.startswith(b"PK") else "of another kind"
        raise CheckpointError(
            f"{shown} is no checkpoint of torch: the file is damaged, {kind}, or empty "
            f"({file.stat().st_size} bytes). It was not loaded. Use last_bak.pth beside it, or "
            "an earlier one."
        )
    return start == _LEGACY_MAGIC


def read_known(file: Path, shown: str) -> Any:
    """The contents of a checkpoint, None where it asks for classes that are not known here.

    Raises CheckpointError, naming it as `shown`, for a damaged file and for one that would run a
    program. Tensors are mapped, not read.
    """
    try:
        asked = _asked_for(file)
        programs = [name for name in asked if name.partition(".")[0] in _RUN_PROGRAMS]
        if programs:
            raise CheckpointError(
                f"{shown} asks for {', '.join(programs)} when it is loaded, which no robomimic "
                "checkpoint needs and which could run any program. It was not loaded. Use a "
                "checkpoint that you trust."
            )
        if not all(name.startswith(_HARMLESS) for name in asked):
            return None
        mapped = {"mmap": True} if "mmap" in inspect.signature(torch.load).parameters else {}
        return torch.load(file, map_location="cpu", weights_only=False, **mapped)
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{shown} cannot be read ({str(error).splitlines()[0][:200]}): the file is damaged. "
            "Use last_bak.pth beside it, or an earlier one."
        ) from error


def _asked_for(file: Path) -> list[str]:
    """Names of classes and functions that loading would call, but for those that torch trusts."""
    own = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    if own is not None:
        return own(file)
    from torch._weights_only_unpickler import _get_allowed_globals

    with zipfile.ZipFile(file) as members:
        pickles = [name for name in members.namelist() if name.endswith("/data.pkl")]
        asked = {name for text in pickles for name in globals_of(members.read(text))}
    if not pickles:
        raise ValueError("there is no data.pkl in it")
    return sorted(asked - set(_get_allowed_globals()))


def globals_of(pickled: bytes) -> list[str]:
    """ "module.name" of all that a pickle asks for, without running it; "?" for what it hides."""
    found, texts = [], []
    for code, value, _ in pickletools.genops(pickled):
        if code.name in ("GLOBAL", "INST"):
            found.append(value.replace(" ", ".").replace("__builtin__.", "builtins."))
        elif code.name == "STACK_GLOBAL":
            found.append(".".join(texts) if len(texts) == 2 else "?")
        elif code.name.startswith("EXT"):
            found.append("?")
        if code.name.endswith("UNICODE") or "UNICODE8" in code.name:
            texts = [*texts[-1:], value]
        elif code.name != "MEMOIZE" and "PUT" not in code.name:
            texts = []
    return found
