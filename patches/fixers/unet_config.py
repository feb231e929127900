"""The sizes of the diffusion policy's U-Net: `algo.unet` of the config, which hosts declare and
never read.

Off by default, because it changes the net: hosts train 67 million parameters whatever the config
says.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import argument, keyword, settle, unrecognised
from robomimic_ddp.patches.outcomes import Edit, Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk

UNET = "ConditionalUnet1D"
POSITIONS = {"diffusion_step_embed_dim": 2, "down_dims": 3, "kernel_size": 4, "n_groups": 5}
"""The parameters that the config names, and where they stand among the net's."""


def fix(source: Source) -> Outcome:
    """`ConditionalUnet1D(...)` in a method gets `down_dims=self.algo_config.unet.down_dims`, ..."""
    edits, done = [], []
    for method in _methods(source.module):
        for call in walk(method, cst.Call):
            if not any(name.rpartition(".")[2] == UNET for name in source.names(call.func)):
                continue
            if any(arg.star for arg in call.args):
                return unrecognised(
                    source, call, "the net's arguments are unpacked from something not seen here"
                )
            missing = [name for name, at in POSITIONS.items() if not argument(call, at, name)]
            if missing:
                edits.append(Edit(call, lambda updated, names=missing: _extended(updated, names)))
            else:
                done.append(call)
    return settle(edits, done, f"no method makes a {UNET}")


def _methods(module: cst.Module) -> Iterator[cst.FunctionDef]:
    """Methods of top-level classes: what has a `self.algo_config`."""
    for statement in module.body:
        if isinstance(statement, cst.ClassDef) and statement.name.value != UNET:
            yield from (item for item in statement.body.body if isinstance(item, cst.FunctionDef))


def _extended(call: cst.Call, names: list[str]) -> cst.Call:
    """The call with further arguments, laid out as those it has: one a line, or all on one."""
    if not call.args:
        return call.with_changes(args=[_argument(name) for name in names])
    first, last = call.args[0], call.args[-1]
    between = first.comma
    if len(call.args) == 1:
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    added = [_argument(name).with_changes(comma=between) for name in names]
    added[-1] = added[-1].with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    joined = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*call.args[:-1], joined, *added])


def _argument(name: str) -> cst.Arg:
    return keyword(name, f"self.algo_config.unet.{name}")


FIXER = Fixer(
    seam="unet config",
    files=("algo/*.py",),
    words=(UNET, "self.algo_config"),
    fix=fix,
    by_hand="pass down_dims, diffusion_step_embed_dim, kernel_size and n_groups of "
    "self.algo_config.unet to the net",
    default=False,
    note="checkpoints of nets of other sizes than the host's own load in hosts with this edit only",
)
