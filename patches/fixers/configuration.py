"""The user's configuration: what its file, the command line and Hydra give, with keys of ours."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    argument,
    calls,
    key_of,
    last_names,
    put_after,
    wrap,
)
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Source, walk

COMPOSE = ("hydra.compose", "hydra.experimental.compose")
CREATE = ("omegaconf.OmegaConf.create", "omegaconf.omegaconf.OmegaConf.create")
LOAD = ("json.load", "json.loads", "yaml.safe_load")
LOCKS = ("lock", "lock_keys")


def _replacements(source: Source, module: cst.Module) -> Iterator[Found]:
    """`cfg = OmegaConf.create(json.load(f))`, where `cfg` is a parameter with the composed
    configuration, becomes `cfg = DDPUtils.load_from(cfg, OmegaConf.create(json.load(f)))`.
    """
    for function in walk(module, cst.FunctionDef):
        parameters = {param.name.value for param in function.params.params}
        for assign in walk(function, cst.Assign):
            name = dotted(assign.targets[0].target) if len(assign.targets) == 1 else ""
            value = assign.value
            is_create = isinstance(value, cst.Call) and source.resolves(value.func, *CREATE)
            if name in parameters and is_create and any(calls(source, value, *LOAD)):
                yield put_after(source, value, "load_from", name)


def _overrides(source: Source, module: cst.Module) -> Iterator[Found]:
    """`compose(..., overrides=words)` becomes `compose(..., overrides=DDPUtils.overrides(words))`.
    (`@hydra.main` reads the command line by itself.)
    """
    for call in calls(source, module, *COMPOSE):
        words = argument(call, 1, "overrides")
        if words is not None and not api_calls(source, words, "overrides"):
            yield wrap(source, words, "overrides")


def _factories(source: Source, module: cst.Module) -> Iterator[Found]:
    """`config_factory(ext["algo_name"])` becomes `DDPUtils.prepare_config(config_factory(...),
    ext)`: there the host has both the file's contents and its own config. Where the script unlocks
    the config's keys before it reads `ext`, the call gets `new_keys=True`.
    """
    done = api_calls(source, module, "prepare_config")
    prepared = {call.args[0].value for call in done if call.args}
    for call in walk(module, cst.Call):
        name = call.args[0].value if call.args else call
        if (
            call not in prepared
            and key_of(name) == "algo_name"
            and isinstance(name.value, cst.Name)
        ):
            if "config_factory" in last_names(source, call):
                external = name.value.value
                flags = ("new_keys=True",) if _adds_keys(module, external) else ()
                yield wrap(source, call, "prepare_config", external, *flags)


def _adds_keys(module: cst.Module, external: str) -> bool:
    """Return whether `config.update(external)` may add keys: it is inside `with config.unlocked():`
    or follows `config.unlock()` in its block.
    """
    for block in walk(module, cst.With):
        managers = [item.item for item in block.items if isinstance(item.item, cst.Call)]
        if any(dotted(call.func).endswith(".unlocked") for call in managers):
            if _updates(block, external):
                return True
    for block in walk(module, cst.IndentedBlock):
        unlocked = False
        for statement in block.body:
            if unlocked and _updates(statement, external):
                return True
            if isinstance(statement, cst.SimpleStatementLine):
                for call in walk(statement, cst.Call):
                    method = dotted(call.func).rpartition(".")[2]
                    unlocked = method == "unlock" or (unlocked and method not in LOCKS)
    return False


def _updates(node: cst.CSTNode, external: str) -> bool:
    """Return whether `.update(external)` is called at or under `node`."""
    return any(
        dotted(call.func).endswith(".update")
        and len(call.args) == 1
        and dotted(call.args[0].value) == external
        for call in walk(node, cst.Call)
    )


FIXERS = {
    # An entry of the host's own that reads load_from=cfg.json and loses what else was given.
    "load_from": Fixer(
        "entry",
        TRAIN_SCRIPTS,
        _replacements,
        "write cfg = DDPUtils.load_from(cfg, OmegaConf.create(json.load(f)))",
        words=("load_from", "OmegaConf"),
        done=("load_from",),
        missing="no file given as load_from= replaces a configuration",
    ),
    # An entry of the host's own that composes with Hydra, which knows no ddp.*.
    "overrides": Fixer(
        "entry",
        TRAIN_SCRIPTS,
        _overrides,
        "compose with overrides=DDPUtils.overrides(sys.argv[1:])",
        words=("hydra", "compose"),
        done=("overrides",),
        missing="Hydra composes nothing from the command line",
    ),
    # The host's config is locked, and the file that it is made from may contain keys of ours.
    "prepare_config": Fixer(
        "config",
        TRAIN_SCRIPTS,
        _factories,
        "where the config is made from the user's file, pass both through "
        "config = DDPUtils.prepare_config(config, external) before config.update(external)",
        words=("config_factory",),
        done=("prepare_config",),
        missing='no config_factory(external["algo_name"])',
        required=True,
    ),
}
