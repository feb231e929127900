"""Recognises hosts to be left alone: those that run several ranks, or have another API's edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from robomimic_ddp.errors import other_api_version
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS, Host
from robomimic_ddp.patches.syntax.python import (
    API_MODULE,
    aliases,
    dotted,
    last_name,
    parsed,
    resolved,
)

DDP = "DistributedDataParallel"

OWN_WAYS = {
    "torch.nn.parallel.DistributedDataParallel": DDP,
    "torch.nn.parallel.distributed.DistributedDataParallel": DDP,
    "torch.distributed.init_process_group": "a separate process group",
    "torch.distributed.fsdp": "FSDP",
    "accelerate": "accelerate",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
}
_LOOPS = (*TRAIN_SCRIPTS, "utils/train_utils.py")
_MAKES, _TRAINS = "algo_factory", "train_on_batch"
_WORDS = re.compile(
    rb"DistributedDataParallel|init_process_group|fsdp|accelerate|lightning|deepspeed|horovod"
)


@dataclass(frozen=True)
class Refusal:
    """Why a host is left alone. `uses`: (path in the package, line, one of OWN_WAYS's values);
    `unsynchronised`: what is wrong with a DistributedDataParallel that averages no gradient, or "".
    """

    uses: tuple[tuple[str, int, str], ...]
    unsynchronised: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        """Each way once, in the order of the files."""
        return tuple(dict.fromkeys(way for _, _, way in self.uses))

    def __str__(self) -> str:
        path, line, _ = self.uses[0]
        others = f" and {len(self.uses) - 1} more places" if len(self.uses) > 1 else ""
        text = (
            "this host already runs several ranks in its own way: it uses "
            f"{', '.join(self.ways)} ({path}:{line}{others}). Patching over it would join a second "
            "process group, and shard data and average gradients twice, or not at all. Remove that "
            "code first (or start from a commit without it), then apply again."
        )
        return f"{text}\n{self.unsynchronised}" if self.unsynchronised else text


def require_own_api_version(host: Host) -> None:
    """Raise ApiVersionError for a host that is patched for another API version than the installed
    one: its edits would look complete, and not mean what they say.
    """
    scripts = (host.read(path) or b"" for path in host.files(("**/*.py",)))
    trees = (parsed(data) for data in scripts if b"api_version" in data)
    error = other_api_version(number for tree in trees for number in _api_versions(tree))
    if error:
        raise error.on_all_ranks()


def _api_versions(tree: ast.Module) -> Iterator[int]:
    names = aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and resolved(node.func, names) == f"{API_MODULE}.entry_point":
            versions = [word.value for word in node.keywords if word.arg == "api_version"]
            yield from (getattr(value, "value", 0) for value in versions)


def find_refusal(host: Host) -> Refusal | None:
    """Return the host's own way of running several ranks, or None. Unused imports do not count."""
    uses, trees = [], {}
    for path in host.files(("**/*.py",)):
        data = host.read(path) or b""
        if not _WORDS.search(data):
            continue
        tree = parsed(data)
        in_file = sorted(_uses(tree))
        uses += [(path, line, way) for line, way in in_file]
        if any(way == DDP for _, way in in_file):
            trees[path] = tree
    if not uses:
        return None
    return Refusal(tuple(uses), _unsynchronised(host, trees))


def _uses(tree: ast.Module) -> set[tuple[int, str]]:
    """Return (line, way) of each use."""
    names = aliases(tree)
    uses = set()
    for node in ast.walk(tree):
        name = resolved(node, names)
        for module, way in OWN_WAYS.items():
            if f"{name}.".startswith(f"{module}."):
                uses.add((node.lineno, way))
    return uses


def _unsynchronised(host: Host, trees: Mapping[str, ast.Module]) -> str:
    """Say what is wrong with a DistributedDataParallel that averages no gradient. DDP averages in
    its own `forward`: around a whole Algo, whose methods training calls through `.module`, that
    never runs. trees: parsed files by path of those that use DistributedDataParallel.
    """
    wrapped_at = [
        f"{path}:{line}" for path, tree in trees.items() for line in _wraps_algorithm(tree)
    ]
    path, line = next(_passes(host), ("", 0)) if wrapped_at else ("", 0)
    if not path:
        return ""
    return (
        f"Its DistributedDataParallel ({', '.join(wrapped_at)}) never synchronises: it is put "
        f"around the whole algorithm, and training calls the algorithm's {_TRAINS} through "
        f"`.module` ({path}:{line}), past DDP's own forward. No gradient is averaged: every rank "
        "trains a separate model, and only the main rank's is saved."
    )


def _wraps_algorithm(tree: ast.Module) -> Iterator[int]:
    names = aliases(tree)
    algorithms = {name for name, value in _assigned(tree) if last_name(value) == _MAKES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            is_ddp = resolved(node.func, names).endswith("DistributedDataParallel")
            if is_ddp and (dotted(node.args[0]) in algorithms or last_name(node.args[0]) == _MAKES):
                yield node.lineno


def _passes(host: Host) -> Iterator[tuple[str, int]]:
    """Yield where `train_on_batch` is called on `x.module`, or on a variable with that value."""
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
    """Return whether `.module`, or getattr(x, "module", ...), stands in the expression."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "module":
            return True
        if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 1:
            if getattr(node.args[1], "value", None) == "module":
                return True
    return False
