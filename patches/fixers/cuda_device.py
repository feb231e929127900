"""`get_torch_device`, which gives `cuda:0` to every process: the device becomes that of the local
rank.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, api_name, calls, definition, settle, unrecognised
from robomimic_ddp.patches.outcomes import Edit, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`torch.device("cuda:0")` becomes `DDPUtils.cuda_device()`; `torch.device("cpu")` stays."""
    function = definition(source, "get_torch_device")
    if not isinstance(function, cst.FunctionDef):
        return NotPresent("no function get_torch_device at top level")

    def change(call: cst.Call) -> cst.Call:
        return cst.Call(api_name(source, "cuda_device"), lpar=call.lpar, rpar=call.rpar)

    edits = []
    for call in calls(source, function, "torch.device"):
        name = call.args[0].value if call.args else None
        if not isinstance(name, cst.SimpleString):
            return unrecognised(source, call, "the device's name is computed")
        if name.evaluated_value.startswith("cuda"):
            edits.append(Edit(call, change))
    return settle(
        edits, api_calls(source, function, "cuda_device"), "get_torch_device names no CUDA device"
    )


FIXER = Fixer(
    seam="device",
    files=("utils/torch_utils.py",),
    words=("def get_torch_device(",),
    fix=fix,
    by_hand="use DDPUtils.cuda_device() for the CUDA device of this process",
)
