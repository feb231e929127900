"""`.to('cuda')` in an algorithm's file: some stand at its top level, before any rank has chosen its
device.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, api_name, argument, settle
from robomimic_ddp.patches.outcomes import Edit, Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`x.to('cuda')` becomes `x.to(DDPUtils.cuda_device())`."""
    edits = []
    for call in walk(source.module, cst.Call):
        device = argument(call, 0, "device")
        is_to = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
        if (
            is_to
            and isinstance(device, cst.SimpleString)
            and device.evaluated_value in ("cuda", "cuda:0")
        ):
            edits.append(Edit(device, lambda _: cst.Call(api_name(source, "cuda_device"))))
    return settle(
        edits, api_calls(source, source.module, "cuda_device"), "nothing is sent to 'cuda'"
    )


FIXER = Fixer(
    seam="device",
    files=("algo/*.py",),
    words=(".to(", "cuda"),
    fix=fix,
    by_hand="send it to DDPUtils.cuda_device()",
    required=False,
)
