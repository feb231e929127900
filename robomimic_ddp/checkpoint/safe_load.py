"""Loads and validates checkpoints from elsewhere without running code that they contain.

Hosts load with torch.load(weights_only=False), which runs any program that a file names. Here torch
reads tensors and the names in `_allowed`; what was read is what the host gets.
"""

from __future__ import annotations

import _compat_pickle
import collections
import inspect
import io
import pickle
import re
import zipfile
from pathlib import Path
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import torch

from robomimic_ddp import files
from robomimic_ddp.checkpoint import safe_numpy
from robomimic_ddp.config import paths, tree
from robomimic_ddp.errors import CheckpointError

_ZIP_MAGIC = b"PK\x03\x04"
_UNREADABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, OSError)
_UNREADABLE += (AssertionError, MemoryError, OverflowError, pickle.UnpicklingError)
_UNREADABLE += (zipfile.BadZipFile,)
"""Every error that torch raises for damaged bytes."""
_CAN_MAP = "mmap" in inspect.signature(torch.serialization.load).parameters  # torch 2.1
_REMEDY = "Check experiment.ckpt_path, or set it to null to train from the beginning."


def check(path: Any, algo_name: str, trusted: bool = False) -> None:
    """Raises CheckpointError if `path` is not a checkpoint of this algorithm, or, unless `trusted`,
    contains more than tensors and plain values. Reads the whole file.
    """
    shown = f"experiment.ckpt_path={path}"
    file = paths.checkpoint(path, shown)
    if trusted:
        _require_archive(file, shown)
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
            f"{algo_name!r}: its parameter names do not match this model's. {_REMEDY}"
        )
    require_numbers(model, shown, "this one would diverge at its first step")


def contents(content: Any) -> str:
    """Describes the contents of a file that is not a checkpoint, for its error."""
    if not isinstance(content, dict):
        return type(content).__name__
    if "model" not in content:
        return str(list(content)[:6])
    model = content["model"]
    kind = "null" if model is None else type(model).__name__
    return 'an empty "model"' if model == {} else f'{kind} as its "model"'


def require_numbers(model: Any, shown: str, effect: str) -> None:
    """Raise CheckpointError for NaN or infinity in the model of the checkpoint `shown`, or in a
    part of it. effect: what would follow.
    """
    tensors = [item for item in tree.named(model) if isinstance(item[1], torch.Tensor)]
    broken = [name for name, tensor in tensors if _is_broken(tensor)]
    if broken:
        raise CheckpointError(
            f"{shown} contains NaN or infinity in {len(broken)} tensor(s), such as {broken[0]}: "
            f"its training had diverged, so {effect}. Use an earlier checkpoint."
        )


def _is_broken(tensor: torch.Tensor) -> bool:
    """Return whether it has NaN, or infinity among numbers: attention masks have 0 and -inf."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    numbers = tensor.float() if tensor.element_size() == 1 else tensor  # isfinite lacks 8 bits
    finite = torch.isfinite(numbers)
    if finite.all():
        return False
    return bool(torch.isnan(tensor).any() or tensor[finite].any())


def does_not_fit(path: Any, error: BaseException) -> CheckpointError | None:
    """Return a CheckpointError for an `error` of loading `path` into the model, or None."""
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


def _require_archive(file: Path, shown: str) -> None:
    """Raise CheckpointError for a file in another format than torch's since 1.6."""
    try:
        with files.opened(file) as opened:
            start = opened.read(len(_ZIP_MAGIC))
    except OSError as error:
        raise CheckpointError(
            f"{shown} cannot be read: {error}. Name a file that you may read."
        ) from error
    if start != _ZIP_MAGIC or not is_archive(file):
        kind = "of another type (such as torch's before 1.6: load it and save it again)"
        kind = "cut off while it was written" if start.startswith(b"PK") else kind
        raise CheckpointError(
            f"{shown} is not a torch checkpoint: the file is damaged, {kind}, or empty "
            f"({file.stat().st_size} bytes). It was not loaded. Use last_bak.pth in its folder, or "
            "an earlier one."
        )


def is_archive(file: Path) -> bool:
    """Return whether `file` is a zip archive; `zipfile.is_zipfile` raises for some damaged ones."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return False


def _require_unchanged(file: Path) -> None:
    """Raise ValueError for an archive with compressed parts, whose bytes torch would map as
    numbers, or with a part that is not what was written: torch does not compare its checksums. All
    are 0 where `torch.serialization.set_crc32_options` has left them out.
    """
    with files.opened(file) as raw, zipfile.ZipFile(io.BufferedReader(raw)) as archive:
        if any(entry.compress_type for entry in archive.infolist()):
            raise ValueError("its archive is compressed")
        has_checksums = any(entry.CRC for entry in archive.infolist())
        changed = archive.testzip() if has_checksums else None
    if changed is not None:
        raise ValueError(f"the checksum of {changed} is wrong")


def read_known(file: Path, shown: str, map_location: Any = "cpu", mapped: bool = True) -> Any:
    """Return the contents of a checkpoint, memory-mapped if `mapped` and possible. Raises
    CheckpointError, which names the file as `shown`, for a damaged file and for one with objects
    that could run any program.
    """
    _require_archive(file, shown)
    how: dict[str, Any] = {"map_location": map_location}
    if mapped and _CAN_MAP:
        how["mmap"] = True
    try:
        _require_unchanged(file)
        return safe_numpy.resolved(_load_allowed(file, how))
    except _UNREADABLE as error:
        text = str(error)
        refused = re.search(r"GLOBAL ([\w.]+)", text)
        if refused is not None or "TorchScript" in text:
            raise CheckpointError(
                f"{shown} asks for {refused.group(1) if refused else 'TorchScript code'} when it "
                "is loaded. Expected tensors, numbers, text and lists or dictionaries of them: "
                "anything else could run arbitrary code. It was not loaded. Use another one. Only "
                "a training can load it, with ddp.trust_checkpoint=true, if you trust its source."
            ) from error
        raise CheckpointError(
            f"{shown} cannot be read ({reason(error)}): the file is damaged, or was not written by "
            "torch.save with its defaults. Use last_bak.pth in its folder, or an earlier one."
        ) from error


def reason(error: Exception) -> str:
    """Return why torch has not loaded a file: a line, without its advice to run the file's code."""
    text = re.split(r"WeightsUnpickler error:|trusted source\.\n\n", str(error))[-1].strip()
    return (text or type(error).__name__).splitlines()[0].partition(". Please use")[0][:200]


def _load_allowed(file: Path, how: dict[str, Any]) -> Any:
    """Return what torch loads from `file` with the names in `_allowed` only. `torch.load` itself is
    swapped while the host reads a checkpoint (`host_checkpoint.read_on_cpu`).
    """
    allowed = _allowed()
    if hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):  # torch 2.6
        with torch.serialization.safe_globals([(value, name) for name, value in allowed.items()]):
            return torch.serialization.load(file, weights_only=True, **how)
    from torch import _weights_only_unpickler as torch_names  # its list has no public name there

    if torch._C.PyTorchFileReader(str(file)).has_record("constants.pkl"):
        raise RuntimeError("TorchScript")
    allowed = {**torch_names._get_allowed_globals(), **allowed}
    unpickler = type("Unpickler", (_RestrictedUnpickler,), {"allowed": allowed})
    module = SimpleNamespace(__name__="restricted pickle", Unpickler=unpickler)
    module.load = lambda *args, **kwargs: unpickler(*args, **kwargs).load()
    return torch.serialization.load(file, weights_only=False, pickle_module=module, **how)


class _RestrictedUnpickler(pickle._Unpickler):
    """Unpickles with the names in `allowed` only, for torch before 2.6."""

    allowed: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what `module.name` stands for. Raises UnpicklingError if it is not allowed."""
        if self.proto < 3:
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
            module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        if f"{module}.{name}" not in self.allowed:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed")
        return self.allowed[f"{module}.{name}"]

    def load_build(self) -> None:
        """Restore the state of an object; a class would be changed for the whole process."""
        if type(self.stack[-2]) not in self.allowed.values():
            raise pickle.UnpicklingError(f"{type(self.stack[-2])} cannot have a state")
        super().load_build()

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def _allowed() -> dict[str, Any]:
    """Return what names in a checkpoint stand for, in addition to those that torch allows."""
    import _codecs
    import builtins
    import typing

    import omegaconf

    plain = "bool bytes dict float frozenset int list range set slice str tuple".split()
    allowed = {f"builtins.{name}": getattr(builtins, name) for name in plain}
    allowed.update({"typing.Any": typing.Any, "_codecs.encode": _codecs.encode})
    # Python 2's names, which protocol 2 writes
    allowed.update({"builtins.long": int, "builtins.xrange": range, "builtins.unicode": str})
    allowed["collections.defaultdict"] = collections.defaultdict  # OmegaConf has empty ones
    nodes = (name for name in vars(omegaconf.nodes) if name.endswith("Node"))
    kinds = [getattr(omegaconf.nodes, name) for name in nodes]
    kinds += [omegaconf.DictConfig, omegaconf.ListConfig]
    kinds += [omegaconf.base.ContainerMetadata, omegaconf.base.Metadata]
    allowed.update({f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds})
    return {**allowed, **safe_numpy.ALLOWED}
