"""Which files train, and which files they take their helpers from: not always scripts/train.py and
utils/train_utils.py.

A script whose training function is patched and whose helpers are not would make two run folders, or
write one checkpoint from two ranks. A script that is not patched would train a model on each rank.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS, Host
from robomimic_ddp.patches.syntax.python import (
    aliases,
    dotted,
    imported_names,
    last_name,
    parsed,
    resolved,
)

TRAIN_UTILS = "utils/train_utils.py"
HELPERS = {"get_exp_dir": "run_directory", "save_model": "save_model"}
"""Functions that a training function calls, and the fixer of each; `_fixer` knows further kinds."""
ROLLOUTS = "rollout_with_stats"
"""How a function's name ends that runs rollouts, whoever calls it."""
TRAIN = "train"
CONFIG_DEVICE = ["config", "device"]
"""The first parameters of a training function that can be patched."""
_MOST_STEPS = 5
_ON_BATCH = "train_on_batch"
_EPOCH = re.compile(r"run_(\w+_)?epoch(_\w+)?")
"""A function that runs an epoch, also of a kind that no fixer knows (`run_multi_epoch`)."""
_MAY_TRAIN = re.compile(rb"\brun_\w*epoch|" + _ON_BATCH.encode())


@dataclass(frozen=True)
class Entry:
    """A file that trains, relative to the package ("../examples/a.py": outside it).

    function: the training function that can be patched, at top level; "" where the file has none,
    or has a main() that calls another file's. line: that of the function or of the call. why: what
    keeps the place from being patched, or "".
    """

    path: str
    line: int
    function: str = ""
    why: str = ""


@dataclass(frozen=True)
class Use:
    """A call in `script` (at `line`) of the helper `name`, which the fixer named `fixer` edits. It
    is defined in `file`, relative to the package of the host, or of the robomimic that the host is
    built on (`in_base`); None where it is in neither.
    """

    script: str
    line: int
    name: str
    fixer: str
    file: str | None
    in_base: bool = False


def find(host: Host) -> list[Entry]:
    """Return every file of the host that trains, and every file of the package whose main() calls
    a training function.
    """
    sources = dict(host.sources())
    entries, scripts = [], host.files(TRAIN_SCRIPTS)
    for path, data in sources.items():
        if path in scripts or _MAY_TRAIN.search(data):
            entries += trainers(path, parsed(data))
    functions = {host.module(entry.path): entry for entry in entries if entry.function}
    known = {entry.path for entry in entries}
    for path, data in sources.items():
        has_main = b"def main(" in data and not path.startswith("../")
        if functions and has_main and path not in known:
            entries += _callers(host, path, parsed(data), functions)
    return entries


def trainers(path: str, tree: ast.Module) -> Iterator[Entry]:
    """Yield the training function of a file, and further loops that train."""
    loops = {}
    for statement in tree.body:
        name = getattr(statement, "name", "")
        line = None if _EPOCH.fullmatch(name) else _training_loop(path, statement)
        if line is not None:
            loops[statement] = line
    functions = [node for node in loops if isinstance(node, ast.FunctionDef) and _has_epochs(node)]
    if path.startswith("scripts/train"):
        functions += [node for node in tree.body if _is_function(node, TRAIN) and node not in loops]
    functions.sort(
        key=lambda function: (function.name != TRAIN, _parameters(function)[:2] != CONFIG_DEVICE)
    )
    for statement, line in loops.items():
        if statement in functions[:1]:
            continue
        why = "the loop is in no function at top level"
        if isinstance(statement, ast.ClassDef):
            why = f"the loop is in a method of {statement.name}"
        elif statement in functions:
            why = f"{statement.name} is a second training function of this file"
        elif isinstance(statement, ast.FunctionDef):
            why = f"{statement.name} calls {_ON_BATCH} in a separate loop, and not run_epoch"
        yield Entry(path, line, why=why)
    for function in functions[:1]:
        if path.startswith("../"):
            why = f"{function.name} trains outside the package, and only the package is edited"
            if "robomimic" in {name.partition(".")[0] for _, name in imported_names(tree)}:
                why = (
                    f"{function.name} trains outside the package: robomimic-ddp apply FILE edits it"
                )
            yield Entry(path, function.lineno, why=why)
        else:
            yield Entry(path, function.lineno, function.name)


def _training_loop(path: str, statement: ast.stmt) -> int | None:
    """Return the line of the first loop in `statement` that trains, or None."""
    for loop in ast.walk(statement):
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
            is_algo = path.startswith("algo/")  # an algorithm may train its parts
            if _has_epochs(loop) or not is_algo and _ON_BATCH in map(last_name, ast.walk(loop)):
                return loop.lineno
    return None


def _has_epochs(node: ast.AST) -> bool:
    """Return whether an epoch is run for training in a loop at or under `node`."""
    loops = (
        loop for loop in ast.walk(node) if isinstance(loop, (ast.For, ast.AsyncFor, ast.While))
    )
    calls = (call for loop in loops for call in ast.walk(loop) if isinstance(call, ast.Call))
    return any(_EPOCH.fullmatch(last_name(call)) and not _validates(call) for call in calls)


def _validates(call: ast.Call) -> bool:
    values = (word.value for word in call.keywords if word.arg == "validate")
    return any(getattr(value, "value", False) is True for value in values)


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _callers(
    host: Host, path: str, tree: ast.Module, functions: dict[str, Entry]
) -> Iterator[Entry]:
    """Yield the first call of a training function of another file."""
    names = aliases(tree, _package(host, path))
    for node in ast.walk(tree):
        target = resolved(node.func, names) if isinstance(node, ast.Call) else ""
        module, _, name = target.rpartition(".")
        entry = functions.get(_own_name(host, module))
        if entry is not None and entry.function == name:
            yield Entry(path, node.lineno)
            return


def uses(host: Host, entries: Iterable[Entry]) -> list[Use]:
    """Return the first call of each helper in each file that has a training function."""
    first: dict[tuple[str, str], Use] = {}
    for entry in entries:
        tree = parsed(host.read(entry.path)) if entry.function else ast.Module([], [])
        for use in _uses(host, entry.path, tree):
            first.setdefault((use.script, use.name), use)
    return list(first.values())


def further_files(helpers: Iterable[Use]) -> list[str]:
    """Return the files other than TRAIN_UTILS that define helpers."""
    return sorted({use.file for use in helpers if use.file and not use.in_base} - {TRAIN_UTILS})


def _uses(host: Host, script: str, tree: ast.Module) -> Iterator[Use]:
    names = aliases(tree, _package(host, script))
    for node in ast.walk(tree):
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        last = name.rpartition(".")[2]
        fixer = _fixer(last)
        if not fixer:
            continue
        target = resolved(node.func, names)
        if target:
            for owner in (host, host.base) if host.is_built_on_robomimic else (host,):
                defined = _definition(owner, target) if owner is not None else None
                if defined is not None:
                    file, function = defined
                    if _needs(fixer, function):
                        yield Use(script, node.lineno, last, fixer, file, owner is not host)
                    break
            else:
                if fixer != "rollouts":
                    yield Use(script, node.lineno, last, fixer, None)
        elif name == last:
            function = _function(tree, last)
            if function is not None and _needs(fixer, function):
                yield Use(script, node.lineno, last, fixer, script)


def _fixer(name: str) -> str:
    """Return the fixer of the helper `name`, `run_epoch_mt` and `icl_rollout_with_stats` too."""
    if name.startswith("run_epoch"):
        return "epoch_log"
    return "rollouts" if "rollout" in name.lower() else HELPERS.get(name, "")


def _needs(fixer: str, function: ast.FunctionDef) -> bool:
    """Return whether the fixer edits `function`: not all with such a name run rollouts
    (`make_rollout_envs`).
    """
    return fixer != "rollouts" or acts(function.name, _parameters(function))


def acts(name: str, parameters: Collection[str]) -> bool:
    """Return whether a function that a training function calls runs rollouts: it has a policy."""
    return name.endswith(ROLLOUTS) or "policy" in parameters


def _definition(host: Host, target: str) -> tuple[str, ast.FunctionDef] | None:
    """Return what "robomimic.utils.helpers.get_exp_dir" is, through imports of it, and its file."""
    for _ in range(_MOST_STEPS):
        module, _, name = target.rpartition(".")
        path = _file(host, module)
        if path is None:
            return None
        tree = parsed(host.read(path))
        function = _function(tree, name)
        if function is not None:
            return path, function
        target = aliases(tree, _package(host, path)).get(name, "")
    return None


def _package(host: Host, path: str) -> str:
    """Return the package that the file's relative imports start from ("robomimic.scripts")."""
    return ".".join([host.package.name, *path.split("/")[:-1]])


def _own_name(host: Host, module: str) -> str:
    """`module` under the package's name, where a copy of robomimic is in a folder of another."""
    package, dot, inner = module.partition(".")
    is_copy = package == "robomimic" and not host.is_built_on_robomimic
    return f"{host.package.name}{dot}{inner}" if is_copy else module


def _file(host: Host, module: str) -> str | None:
    package, _, inner = _own_name(host, module).partition(".")
    if package != host.package.name or not inner:
        return None
    stem = inner.replace(".", "/")
    matches = host.files((f"{stem}.py", f"{stem}/__init__.py"))
    return matches[0] if matches else None


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """Return the function of that name at top level: the last one, as Python sees it."""
    functions = [node for node in tree.body if _is_function(node, name)]
    return functions[-1] if functions else None
