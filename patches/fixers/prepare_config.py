"""The host's locked config, made from a file of the user's that may hold keys of ours.

`config_factory(ext_cfg["algo_name"])` is where the host has both the file's contents and its own
config.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, api_calls, settle, wrap
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`config_factory(ext["algo_name"])` becomes `DDPUtils.prepare_config(config_factory(...),
    ext)`.
    """
    done = api_calls(source, source.module, "prepare_config")
    prepared = {call.args[0].value for call in done if call.args}
    edits = []
    for call in walk(source.module, cst.Call):
        external = _external(call)
        if external and call not in prepared and _is_factory(source, call):
            edits.append(wrap(source, call, "prepare_config", external))
    return settle(edits, done, 'no config_factory(external["algo_name"])')


def _is_factory(source: Source, call: cst.Call) -> bool:
    return any(name.rpartition(".")[2] == "config_factory" for name in source.names(call.func))


def _external(call: cst.Call) -> str:
    """The variable in `f(variable["algo_name"])`, else ""."""
    argument = call.args[0].value if call.args else None
    if not isinstance(argument, cst.Subscript) or not isinstance(argument.value, cst.Name):
        return ""
    index = argument.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    is_name = isinstance(key, cst.SimpleString) and key.evaluated_value == "algo_name"
    return argument.value.value if is_name else ""


FIXER = Fixer(
    seam="config",
    files=TRAIN_SCRIPTS,
    words=("config_factory",),
    fix=fix,
    by_hand=(
        "where the config is made from the user's file, pass both through "
        "config = DDPUtils.prepare_config(config, external) before config.update(external)"
    ),
)
