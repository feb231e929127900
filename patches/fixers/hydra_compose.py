"""An entry of the host's own that composes its configuration with Hydra, or now without it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS
from robomimic_ddp.patches.imports import API_MODULE, dotted
from robomimic_ddp.patches.outcomes import (
    AlreadyApplied,
    Applied,
    Edit,
    Fixer,
    NotPresent,
    Outcome,
)
from robomimic_ddp.patches.source import Source, walk

OFFERED = {"GlobalHydra", "compose", "initialize", "initialize_config_dir"}
"""What `robomimic_ddp.api` has of Hydra: Hydra's own where it is installed."""


def fix(source: Source) -> Outcome:
    """`from hydra import compose, initialize_config_dir` becomes
    `from robomimic_ddp.api import compose, initialize_config_dir`, which composes the YAML with
    OmegaConf where Hydra is not installed.
    """
    found = [(node, _names(node)) for node in _hydra_imports(source.module)]
    others = sorted({name for _, names in found for name in names} - OFFERED)
    if others:
        return NotPresent(f"it needs Hydra for more than composing: {', '.join(others)}")
    edits = tuple(Edit(node, _from_api) for node, _ in found)
    if edits:
        return Applied(edits)
    done = [
        node
        for node in walk(source.module, cst.ImportFrom)
        if node.module and dotted(node.module) == API_MODULE and _names(node) <= OFFERED
    ]
    return AlreadyApplied(tuple(done)) if done else NotPresent("nothing is taken from Hydra")


def _hydra_imports(module: cst.Module) -> Iterator[cst.Import | cst.ImportFrom]:
    for node in walk(module, (cst.Import, cst.ImportFrom)):
        if isinstance(node, cst.Import):
            roots = {dotted(alias.name).split(".")[0] for alias in node.names}
        else:
            roots = {dotted(node.module).split(".")[0]} if node.module and not node.relative else ()
        if "hydra" in roots:
            yield node


def _names(node: cst.Import | cst.ImportFrom) -> set[str]:
    if isinstance(node, cst.Import):
        return {f"import {dotted(alias.name)}" for alias in node.names}
    if isinstance(node.names, cst.ImportStar):
        return {"*"}
    return {alias.name.value for alias in node.names}


def _from_api(node: cst.ImportFrom) -> cst.ImportFrom:
    package, name = API_MODULE.split(".")
    return node.with_changes(module=cst.Attribute(cst.Name(package), cst.Name(name)))


FIXER = Fixer(
    seam="entry",
    files=TRAIN_SCRIPTS,
    words=("compose", "hydra|robomimic_ddp"),
    fix=fix,
    by_hand="import compose and initialize_config_dir from robomimic_ddp.api",
    required=False,
)
