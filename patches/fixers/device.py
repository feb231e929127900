"""Devices: what a host puts on `cuda:0`, or makes before any rank has chosen its device."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_name,
    argument,
    calls,
    text_of,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.source import Edit, Source, walk


def _devices(source: Source, function: cst.FunctionDef) -> Iterator[Found]:
    """`torch.device("cuda:0")` becomes `DDPUtils.cuda_device()`; `torch.device("cpu")` stays."""

    def change(call: cst.Call) -> cst.Call:
        return cst.Call(api_name(source, "cuda_device"), lpar=call.lpar, rpar=call.rpar)

    for call in calls(source, function, "torch.device"):
        name = call.args[0].value if call.args else None
        if not isinstance(name, cst.SimpleString):
            yield unrecognised(source, call, "the device's name is computed")
        if text_of(name).startswith("cuda"):
            yield Edit(call, change)


def _moves(source: Source, module: cst.Module) -> Iterator[Found]:
    """`x.to('cuda')` becomes `x.to(DDPUtils.cuda_device())`."""
    for call in walk(module, cst.Call):
        device = argument(call, 0, "device")
        is_to = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
        if is_to and text_of(device) in ("cuda", "cuda:0"):
            yield Edit(device, lambda _: cst.Call(api_name(source, "cuda_device")))


def _models(source: Source, module: cst.Module) -> Iterator[Found]:
    """`AutoModel.from_pretrained(` at top level becomes `DDPUtils.language_model(...)(`."""
    for statement in module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            continue
        for call in walk(statement, cst.Call):
            names = (name.split(".") for name in source.names(call.func))
            if any(
                name[0] == "transformers" and "Model" in name[-2] and name[-1] == "from_pretrained"
                for name in names
                if isinstance(call.func, cst.Attribute)
            ):
                yield wrap(source, call.func, "language_model")


FIXERS = {
    # It gives cuda:0 to every process: the device becomes that of the local rank.
    "cuda_device": Fixer(
        "device",
        ("utils/torch_utils.py",),
        _devices,
        "use DDPUtils.cuda_device() for the CUDA device of this process",
        within="def get_torch_device",
        done=("cuda_device",),
        missing="get_torch_device names no CUDA device",
        required=True,
    ),
    "to_cuda": Fixer(
        "device",
        ("algo/*.py",),
        _moves,
        "send it to DDPUtils.cuda_device()",
        words=(".to(", "cuda"),
        done=("cuda_device",),
        missing="nothing is sent to 'cuda'",
    ),
    # Every process would load it while it imports the file, wanted or not.
    "language_model": Fixer(
        "language model",
        ("algo/*.py", "utils/*.py"),
        _models,
        "load it with DDPUtils.language_model(AutoModel.from_pretrained)(...)",
        words=("from_pretrained", "transformers"),
        done=("language_model",),
        missing="no language model is loaded while the file is imported",
    ),
}
