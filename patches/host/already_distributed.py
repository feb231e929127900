"""Recognises hosts to be left alone: those that run several ranks, or have another API's edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from robomimic_ddp.errors import other_api_version
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.syntax.python import API_MODULE, aliases, parsed, resolved

OWN_WAYS = {
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "DistributedDataParallel",
    "torch.distributed.init_process_group": "a separate process group",
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
    """Why a host is left alone. `uses`: (path in the package, line, one of OWN_WAYS's values)."""

    uses: tuple[tuple[str, int, str], ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """Each way once, in the order of the files."""
        return tuple(dict.fromkeys(way for _, _, way in self.uses))

    def __str__(self) -> str:
        path, line, _ = self.uses[0]
        others = f" and {len(self.uses) - 1} more places" if len(self.uses) > 1 else ""
        return (
            "this host already runs several ranks in its own way: it uses "
            f"{', '.join(self.ways)} ({path}:{line}{others}). Patching over it would join a second "
            "process group, and shard data and average gradients twice, or not at all. Remove that "
            "code first (or start from a commit without it), then apply again."
        )


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
    uses = []
    for path in host.files(("**/*.py",)):
        data = host.read(path) or b""
        if _WORDS.search(data):
            uses += [(path, line, way) for line, way in sorted(_uses(parsed(data)))]
    return Refusal(tuple(uses)) if uses else None


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
