"""A training batch that is converted to float before it is moved: it is moved first, as it is
stored.

Images are uint8 in the data; as float32 they would be four times as many bytes to copy. The order
of the two conversions does not change a bit of their result.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import settle
from robomimic_ddp.patches.outcomes import Edit, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`to_device(to_float(batch), device)` becomes `to_float(to_device(batch, device))`."""
    edits, done = [], []
    for function in walk(source.module, cst.FunctionDef):
        if function.name.value == "process_batch_for_training":
            for call in walk(function, cst.Call):
                if _is_pair(source, call, "to_device", "to_float"):
                    edits.append(Edit(call, _swapped))
                elif _is_pair(source, call, "to_float", "to_device"):
                    done.append(call)
    if done and not edits and source.api_import is None:
        return NotPresent("the host moves a batch before it converts it")
    return settle(edits, done, "no batch is converted to float and then moved")


def _is_pair(source: Source, call: cst.Call, outer: str, inner: str) -> bool:
    """Whether `call` is `outer(inner(batch))` of the host's tensor_utils, `device` aside."""
    return (
        _is_tensor_util(source, call, outer)
        and isinstance(call.args[0].value, cst.Call)
        and _is_tensor_util(source, call.args[0].value, inner)
    )


def _is_tensor_util(source: Source, call: cst.Call, name: str) -> bool:
    if len(call.args) != (2 if name == "to_device" else 1) or any(arg.star for arg in call.args):
        return False
    return any(found.endswith(f".tensor_utils.{name}") for found in source.names(call.func))


def _swapped(move: cst.Call) -> cst.Call:
    first, *device = move.args
    convert = first.value
    moved = move.with_changes(
        args=[first.with_changes(value=convert.args[0].value), *device], lpar=(), rpar=()
    )
    return convert.with_changes(
        args=[convert.args[0].with_changes(value=moved)], lpar=move.lpar, rpar=move.rpar
    )


FIXER = Fixer(
    seam="images",
    files=("algo/*.py",),
    words=("noise_pred_net", "def process_batch_for_training(", "to_float(", "to_device("),
    fix=fix,
    by_hand="write TensorUtils.to_float(TensorUtils.to_device(batch, device))",
    required=False,
)
