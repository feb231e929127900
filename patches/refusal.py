"""Recognises hosts that already run several ranks in a way of their own, to be left alone."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from robomimic_ddp.patches.hosts import Host
from robomimic_ddp.patches.python import aliases, parsed, resolved
from robomimic_ddp.patches.unsynchronised import Unsynchronised, find_unsynchronised

DDP = "DistributedDataParallel"

OWN_WAYS = {
    "torch.nn.parallel.DistributedDataParallel": DDP,
    "torch.nn.parallel.distributed.DistributedDataParallel": DDP,
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
    """Why a host is left alone. `uses`: (path in the package, line, one of OWN_WAYS's values);
    `unsynchronised`: a DistributedDataParallel among them that averages no gradient.
    """

    uses: tuple[tuple[str, int, str], ...]
    unsynchronised: Unsynchronised | None = None

    @property
    def found(self) -> tuple[str, ...]:
        """Each way once, in the order of the files."""
        return tuple(dict.fromkeys(way for _, _, way in self.uses))

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """(path, line) of each use."""
        return tuple((path, line) for path, line, _ in self.uses)

    def __str__(self) -> str:
        path, line = self.places[0]
        more = f" and {len(self.places) - 1} more places" if len(self.places) > 1 else ""
        text = (
            "this host already runs several ranks in its own way: it uses "
            f"{', '.join(self.found)} ({path}:{line}{more}). Patching over it would join a second "
            "process group, and shard data and average gradients twice, or not at all. Remove that "
            "code first (or start from a commit without it), then apply again."
        )
        return f"{text}\n{self.unsynchronised}" if self.unsynchronised else text


def find_refusal(host: Host) -> Refusal | None:
    """The host's own way of running several ranks, or None. Comments and unused imports do not
    count.
    """
    uses, trees = [], {}
    for path in host.files(("**/*.py",)):
        data = host.read(path) or b""
        if not _WORDS.search(data):
            continue
        tree = parsed(data)
        found = sorted(_uses(tree))
        uses += [(path, line, way) for line, way in found]
        if any(way == DDP for _, way in found):
            trees[path] = tree
    if not uses:
        return None
    return Refusal(tuple(uses), find_unsynchronised(host, trees))


def _uses(tree: ast.Module) -> set[tuple[int, str]]:
    """(line, way) of each use."""
    names = aliases(tree)
    uses = set()
    for node in ast.walk(tree):
        name = resolved(node, names)
        for own, way in OWN_WAYS.items():
            if f"{name}.".startswith(f"{own}."):
                uses.add((node.lineno, way))
    return uses
