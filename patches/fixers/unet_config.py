"""The sizes of the diffusion policy's U-Net: `algo.unet` of the config, which hosts declare and
never read.

Off by default, because it changes the net that hosts train whatever the config says.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from robomimic_ddp.patches.edits import argument, extended, keyword, last_names, unrecognised
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
        added = [keyword(name, f"self.algo_config.unet.{name}") for name in missing]
        yield Edit(call, partial(extended, arguments=added)) if missing else call


def _methods(module: cst.Module) -> Iterator[cst.FunctionDef]:
    """Methods of top-level classes: what has a `self.algo_config`."""
    for statement in module.body:
        if isinstance(statement, cst.ClassDef) and statement.name.value != UNET:
            yield from (item for item in statement.body.body if isinstance(item, cst.FunctionDef))


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
