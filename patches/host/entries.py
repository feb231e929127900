"""Which files the train scripts take their helpers from: not always utils/train_utils.py.

A script whose train() is patched and whose helpers are not would make two run folders, or write one
checkpoint from two ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.syntax.python import aliases, dotted, parsed, resolved

TRAIN_UTILS = "utils/train_utils.py"
HELPERS = {"get_exp_dir": "run_directory", "save_model": "save_model", "run_epoch": "epoch_log"}
"""Functions that train() calls, and the fixer of each."""
_SCRIPTS = ("scripts/train*.py",)
_MOST_STEPS = 5


@dataclass(frozen=True)
class Use:
    """A call in `script` (at `line`) of the helper `name` (of HELPERS), which is defined in `file`:
    paths relative to the package, None where the definition is not in the host.
    """

    script: str
    line: int
    name: str
    file: str | None


def uses(host: Host) -> list[Use]:
    """The first call of each helper in each train script."""
    found = {}
    for script in host.files(_SCRIPTS):
        tree = parsed(host.read(script))
        for use in _uses(host, script, tree) if _defines(tree, "train") else ():
            found.setdefault((use.script, use.name), use)
    return list(found.values())


def further_files(found: Iterable[Use]) -> list[str]:
    """Files other than TRAIN_UTILS that define helpers."""
    return sorted({use.file for use in found if use.file} - {TRAIN_UTILS})


def _uses(host: Host, script: str, tree: ast.Module) -> Iterator[Use]:
    names = aliases(tree, _package(host, script))
    for node in ast.walk(tree):
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        last = name.rpartition(".")[2]
        helper = "run_epoch" if last.startswith("run_epoch") else last  # `run_epoch_mt`, too
        if helper not in HELPERS:
            continue
        target = resolved(node.func, names)
        if target:
            yield Use(script, node.lineno, helper, _definition(host, target))
        elif name == last and _defines(tree, last):
            yield Use(script, node.lineno, helper, script)


def _definition(host: Host, target: str) -> str | None:
    """The file that defines "robomimic.utils.helpers.get_exp_dir", through imports of it."""
    for _ in range(_MOST_STEPS):
        module, _, name = target.rpartition(".")
        path = _file(host, module)
        if path is None:
            return None
        tree = parsed(host.read(path))
        if _defines(tree, name):
            return path
        target = aliases(tree, _package(host, path)).get(name, "")
    return None


def _package(host: Host, path: str) -> str:
    """The package that relative imports of the file start from, such as "robomimic.scripts"."""
    return ".".join([host.package.name, *path.split("/")[:-1]])


def _file(host: Host, module: str) -> str | None:
    package, _, inner = module.partition(".")
    if package not in (host.package.name, "robomimic") or not inner:
        return None
    stem = inner.replace(".", "/")
    found = host.files((f"{stem}.py", f"{stem}/__init__.py"))
    return found[0] if found else None


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)
