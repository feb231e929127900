"""Recognises a DistributedDataParallel that never averages a gradient.

DDP averages in its own `forward`. Around a whole Algo, whose methods training calls through
`.module`, that `forward` never runs: each rank trains a model of its own, without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from robomimic_ddp.patches.hosts import Host
from robomimic_ddp.patches.python import aliases, dotted, last_name, parsed, resolved

_LOOPS = ("scripts/train*.py", "utils/train_utils.py")
_MAKES, _TRAINS = "algo_factory", "train_on_batch"


@dataclass(frozen=True)
class Unsynchronised:
    """`made`: where DDP is put around the algorithm; `passed`: where training goes past it."""

    made: tuple[tuple[str, int], ...]
    passed: tuple[str, int]

    def __str__(self) -> str:
        made = ", ".join(f"{path}:{line}" for path, line in self.made)
        return (
            f"Its DistributedDataParallel ({made}) never synchronises: it is put around the whole "
            f"algorithm, and training calls the algorithm's {_TRAINS} through `.module` "
            f"({self.passed[0]}:{self.passed[1]}), past DDP's own forward. No gradient is "
            "averaged: every rank trains a model of its own, and only the main rank's is saved."
        )


def find_unsynchronised(host: Host, trees: Mapping[str, ast.Module]) -> Unsynchronised | None:
    """Such wrappers in `trees`, parsed files by path of those that use DistributedDataParallel."""
    made = tuple((path, line) for path, tree in trees.items() for line in _wraps_algorithm(tree))
    passed = next(_passes(host), None) if made else None
    return Unsynchronised(made, passed) if passed else None


def _wraps_algorithm(tree: ast.Module) -> Iterator[int]:
    names = aliases(tree)
    algorithms = {name for name, value in _assigned(tree) if last_name(value) == _MAKES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            is_ddp = resolved(node.func, names).endswith("DistributedDataParallel")
            if is_ddp and (dotted(node.args[0]) in algorithms or last_name(node.args[0]) == _MAKES):
                yield node.lineno


def _passes(host: Host) -> Iterator[tuple[str, int]]:
    """Where `train_on_batch` is called on `x.module`, or on a variable that holds it."""
    for path in host.files(_LOOPS):
        tree = parsed(host.read(path))
        inner = {name for name, value in _assigned(tree) if _takes_module(value)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == _TRAINS:
                if dotted(node.value) in inner or _takes_module(node.value):
                    yield path, node.lineno


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((dotted(target), node.value) for target in node.targets)


def _takes_module(value: ast.expr) -> bool:
    """Whether `.module`, or getattr(x, "module", ...), stands in the expression."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "module":
            return True
        if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 1:
            if getattr(node.args[1], "value", None) == "module":
                return True
    return False
