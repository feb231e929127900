"""The host's edited lines: which names of our api a file uses, and which `apply` put there."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from robomimic_ddp.config import launch_env
from robomimic_ddp.errors import RobomimicDDPError, UnpatchedScript
from robomimic_ddp.files import read_json

RECORD = ".robomimic_ddp.json"
"""The record that `apply` writes into the host's package folder."""
_API = "robomimic_ddp.api"


def package_folder(package: str | None) -> Path | None:
    """Return the folder of an imported package ("robomimic"), or None."""
    file = getattr(sys.modules.get(package or ""), "__file__", None)
    return Path(file).parent if file and Path(file).name == "__init__.py" else None


def main_text() -> str:
    """Return the source text of the script that this process runs, edited in memory where it is;
    "" where it has none.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    get_source = getattr(getattr(main, "__loader__", None), "get_source", None)
    try:
        return (get_source(spec.name if spec else main.__name__) if get_source else "") or ""
    except (ImportError, SyntaxError, UnicodeDecodeError):
        return ""


def importable_folder(package: str) -> Path | None:
    """Return the folder of a package as an import would find it, without one; None without it."""
    spec = importlib.util.find_spec(package)
    return next(map(Path, (spec and spec.submodule_search_locations) or ()), None)


def api_names(text: str) -> set[str] | None:
    """Return the names of robomimic_ddp.api that a source text uses; None if it imports no api."""
    if "robomimic_ddp" not in text:
        return None
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # written for another Python
        return None
    aliases, names = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {alias.asname for alias in node.names if alias.name == _API}
        elif isinstance(node, ast.ImportFrom) and node.module == _API:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "robomimic_ddp":
            aliases |= {alias.asname or "api" for alias in node.names if alias.name == "api"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in aliases:
            names.add(node.attr)
    return names if aliases or names else None


def lost(package: Path | None) -> dict[str, list[str]]:
    """Local: host files loaded by this process that have lost edits of `apply`, each with the names
    that it lacks (no names if the edit that it lacks names none).

    Other edits of a file do not matter. Empty without a record.
    """
    recorded = _recorded(package) if package is not None else {}
    loaded = dict(_loaded_texts(set(recorded))) if recorded else {}
    missing_names = {}
    for path, names in recorded.items():
        used = api_names(loaded[path]) if path in loaded else set(names)
        missing = sorted(set(names) - (used or set()))
        if missing or used is None:
            missing_names[str(path)] = missing
    return missing_names


def require_whole() -> None:
    """Local: on several ranks, raises UnpatchedScript if a host loaded by this process has lost
    edits of ours. For scripts that start no run; a run compares all ranks.
    """
    try:
        launch = launch_env.read_launch_env()
    except RobomimicDDPError:
        return  # shown by the entry point
    if launch.world_size == 1:
        return
    for name in [name for name in sys.modules if "." not in name]:
        missing_names = lost(package_folder(name))
        if missing_names:
            raise UnpatchedScript(half_patched(missing_names), quiet=launch.local_rank > 0)


def require_one_rank(function: str, caller: CodeType) -> None:
    """Local: raise UnpatchedScript on several ranks, where `caller` calls `function` of the host
    outside of a run.
    """
    launch = launch_env.read_launch_env()
    if launch.world_size > 1:
        raise UnpatchedScript(
            f"{caller.co_filename}:{caller.co_firstlineno} calls {function} on {launch.world_size} "
            "ranks without @DDPUtils.distributed, so every rank would train a separate model and "
            "write the same files. The script was reverted (by git?), or "
            "`robomimic-ddp apply` cannot patch it: `robomimic-ddp status` says why. Start a "
            "patched script, or start this one without torchrun.",
            quiet=launch.rank > 0,
        )


def require_patched_epoch(train: FunctionType) -> None:
    """Local: raise UnpatchedScript if the `run_epoch` that the host's `train` calls has lost its
    edit, or is that of another package than the patched one.
    """
    names = [name for name in train.__code__.co_names if name.startswith("run_epoch")]
    places = [vars(value) for value in train.__globals__.values() if isinstance(value, ModuleType)]
    for function in [place.get(name) for place in (train.__globals__, *places) for name in names]:
        # One of another name is somebody's wrapper; an epoch without our steps is an error later.
        is_hosts = isinstance(function, FunctionType) and function.__name__ in names
        if is_hosts and not hasattr(function, "is_epoch_log"):
            raise _unpatched(train.__name__, function)


def require_patched_directory(get_exp_dir: FunctionType) -> None:
    """Local: raise UnpatchedScript if `get_exp_dir`, which a patched `main()` calls, is that of an
    unpatched package.
    """
    if not hasattr(get_exp_dir, "is_run_directory"):
        raise _unpatched("main", get_exp_dir)


def _unpatched(caller: str, function: FunctionType) -> UnpatchedScript:
    return UnpatchedScript(
        f"{caller} is patched, but it calls {function.__name__} of "
        f"{function.__code__.co_filename}, which is not. On several ranks each would do separately "
        "what they must do together. Run `robomimic-ddp apply` on that package, too, or start the "
        "script with `robomimic-ddp run`, which edits both in memory.",
        quiet=launch_env.read_launch_env().rank > 0,
    )


def half_patched(lost: Mapping[str, Sequence[str]]) -> str:
    """Return the message for a result of `lost` that is not empty."""
    listed = "\n".join(
        f"  {path} lacks {', '.join(f'DDPUtils.{name}' for name in names) or 'all of its edits'}"
        for path, names in lost.items()
    )
    return (
        "this host is half patched: some lines that robomimic-ddp apply put in are missing "
        f"(reverted by git, or lost in a merge?):\n{listed}\nOn several ranks each would do "
        "separately what they must do together, or wait for the others without end. Run "
        "`robomimic-ddp apply` on the host: it restores the lines, and records those that you "
        "removed on purpose."
    )


def _recorded(package: Path) -> dict[Path, list[str]]:
    try:
        files = read_json(package / RECORD)["files"]
        return {
            (package / name).resolve(): list(item["seams"])
            for name, item in files.items()
            if item["original"] is not None
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # `robomimic-ddp status` reports what is wrong with it


def _loaded_texts(files: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the source text of each of `files` as loaded, with edits that `run` makes in memory."""
    basenames = {file.name for file in files}  # resolving every module's path takes 0.3 s
    for name, module in list(sys.modules.items()):
        file, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
        is_like_one = isinstance(file, str) and os.path.basename(file) in basenames
        path = Path(file).resolve() if is_like_one else None
        get_source = getattr(getattr(module, "__loader__", None), "get_source", None)
        if path in files and get_source is not None:
            try:
                yield path, get_source(spec.name if spec else name) or ""
            except (ImportError, SyntaxError, UnicodeDecodeError):
                continue
