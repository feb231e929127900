"""An entry of the host's own that reads `load_from=cfg.json` and loses what else was given."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, api_calls, api_name, calls, settle
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import Edit, Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk

CREATE = ("omegaconf.OmegaConf.create", "omegaconf.omegaconf.OmegaConf.create")
LOAD = ("json.load", "json.loads", "yaml.safe_load")


def fix(source: Source) -> Outcome:
    """`cfg = OmegaConf.create(json.load(f))` becomes
    `cfg = DDPUtils.load_from(cfg, OmegaConf.create(json.load(f)))`, where `cfg` is a parameter.
    """
    edits = []
    for assign, name in _replacements(source):
        edits.append(_over(source, assign, name))
    done = api_calls(source, source.module, "load_from")
    return settle(edits, done, "no file given as load_from= replaces a configuration")


def _replacements(source: Source) -> Iterator[tuple[cst.Assign, str]]:
    """Assignments of a file's content to the parameter that holds the composed configuration."""
    for function in walk(source.module, cst.FunctionDef):
        held = {param.name.value for param in function.params.params}
        for assign in walk(function, cst.Assign):
            name = dotted(assign.targets[0].target) if len(assign.targets) == 1 else ""
            is_create = isinstance(assign.value, cst.Call) and source.resolves(
                assign.value.func, *CREATE
            )
            if name in held and is_create and any(calls(source, assign.value, *LOAD)):
                yield assign, name


def _over(source: Source, assign: cst.Assign, name: str) -> Edit:
    def change(value: cst.Call) -> cst.Call:
        return cst.Call(api_name(source, "load_from"), [cst.Arg(cst.Name(name)), cst.Arg(value)])

    return Edit(assign.value, change)


FIXER = Fixer(
    seam="entry",
    files=TRAIN_SCRIPTS,
    words=("load_from", "OmegaConf"),
    fix=fix,
    by_hand="write cfg = DDPUtils.load_from(cfg, OmegaConf.create(json.load(f)))",
    required=False,
)
