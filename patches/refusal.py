"""Recognises hosts that already run several ranks in a way of their own, to be left alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from robomimic_ddp.patches.hosts import Host
from robomimic_ddp.patches.python import syntax_tree

OWN_WAYS = {
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "DistributedDataParallel",
    "torch.distributed.init_process_group": "a process group of its own",
    "torch.distributed.fsdp": "FSDP",
    "accelerate": "accelerate",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
}
_WORDS = re.compile(
    rb"DistributedDataParallel|init_process_group|fsdp|accelerate|lightning|deepspeed|horovod"
)


@dataclass(frozen=True)
class Refusal:
    """What was found (a key of OWN_WAYS's values), and each place as (path in the package,
    line).
    """

    found: tuple[str, ...]
    places: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        path, line = self.places[0]
        more = f" and {len(self.places) - 1} more places" if len(self.places) > 1 else ""
        return (
            "this host already runs several ranks in its own way: it uses "
            f"{', '.join(self.found)} ({path}:{line}{more}). Patching over it would join a second "
            "process group, and shard data and average gradients twice, or not at all. Remove that "
            "code first (or start from a commit without it), then apply again."
        )


def find_refusal(host: Host) -> Refusal | None:
    """The host's own way of running several ranks, or None. Comments and unused imports do not
    count.
    """
    found: dict[str, None] = {}
    places = []
    for path in host.files(("**/*.py",)):
        data = host.read(path) or b""
        if not _WORDS.search(data):
            continue
        for line, way in _uses(data):
            found[way] = None
            places.append((path, line))
    return Refusal(tuple(found), tuple(places)) if places else None


def _uses(data: bytes) -> list[tuple[int, str]]:
    """(line, way) of each use, by line; none for a file that does not parse, which cannot run
    either.
    """
    try:
        tree = syntax_tree(data)
    except (SyntaxError, ValueError, RecursionError):
        return []
    aliases = dict(_aliases(tree))
    uses = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            base, _, rest = _dotted(node).partition(".")
            name = ".".join(filter(None, (aliases.get(base, ""), rest)))
            for own, way in OWN_WAYS.items():
                if base in aliases and f"{name}.".startswith(f"{own}."):
                    uses[node.lineno, way] = None
    return sorted(uses)


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""
