"""The sizes of the diffusion policy's U-Net: `algo.unet` of the config, which hosts declare and
never read.

Off by default, because it changes the net that hosts train whatever the config says.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import argument, keyword, last_names, unrecognised
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

UNET = "ConditionalUnet1D"
POSITIONS = {"diffusion_step_embed_dim": 2, "down_dims": 3, "kernel_size": 4, "n_groups": 5}
"""The parameters that the config names, and where they stand among the net's."""


def find(source: Source, module: cst.Module) -> Iterator[Found]:
    """`ConditionalUnet1D(...)` in a method gets `down_dims=self.algo_config.unet.down_dims`, ..."""
    for call in (call for method in _methods(module) for call in walk(method, cst.Call)):
        if UNET not in last_names(source, call):
            continue
        if any(arg.star for arg in call.args):
            why = "the net's arguments are unpacked from something not seen here"
            yield unrecognised(source, call, why)
        missing = [name for name, at in POSITIONS.items() if not argument(call, at, name)]
        yield Edit(call, _extended(missing)) if missing else call


def _methods(module: cst.Module) -> Iterator[cst.FunctionDef]:
    """Methods of top-level classes: what has a `self.algo_config`."""
    for statement in module.body:
        if isinstance(statement, cst.ClassDef) and statement.name.value != UNET:
            yield from (item for item in statement.body.body if isinstance(item, cst.FunctionDef))


def _extended(names: list[str]):
    """Adds further arguments to a call, laid out as those it has: one a line, or all on one."""
    added = [keyword(name, f"self.algo_config.unet.{name}") for name in names]

    def change(call: cst.Call) -> cst.Call:
        if not call.args:
            return call.with_changes(args=added)
        first, last = call.args[0], call.args[-1]
        between = first.comma
        if len(call.args) == 1:
            between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        arguments = [arg.with_changes(comma=between) for arg in added]
        arguments[-1] = arguments[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
        joined = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
        return call.with_changes(args=[*call.args[:-1], joined, *arguments])

    return change


FIXER = Fixer(
    "unet config",
    ("algo/*.py",),
    find,
    "pass down_dims, diffusion_step_embed_dim, kernel_size and n_groups of self.algo_config.unet "
    "to the net",
    words=(UNET, "self.algo_config"),
    missing=f"no method makes a {UNET}",
    required=True,
    default=False,
    note="checkpoints of nets with other sizes than the host's load only in hosts with this edit",
)
