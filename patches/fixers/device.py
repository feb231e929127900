"""Devices: what a host puts on `cuda:0`, or makes before any rank has chosen its device."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    api_name,
    argument,
    calls,
    text_of,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
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
            elif api_calls(source, call.func, "language_model"):
                yield call


def _conversions(source: Source, module: cst.Module) -> list[Found]:
    """`to_device(to_float(batch), device)` becomes `to_float(to_device(batch, device))`, the same
    bits: as float32, uint8 images would be four times as many bytes to copy.
    """
    places, moves_first = [], False
    for function in walk(module, cst.FunctionDef):
        if function.name.value == "process_batch_for_training":
            for call in walk(function, cst.Call):
                if _is_pair(source, call, "to_device", "to_float"):
                    places.append(Edit(call, _swapped))
                elif _is_pair(source, call, "to_float", "to_device"):
                    places.append(call)
                    moves_first = True
    is_edited = source.api_import is not None or any(isinstance(place, Edit) for place in places)
    if moves_first and not is_edited:
        return [NotPresent("the host moves a batch before it converts it")]
    return places


def _is_pair(source: Source, call: cst.Call, outer: str, inner: str) -> bool:
    """Return whether `call` is `outer(inner(batch))` of the host's tensor_utils, `device` aside."""
    return (
        _is_tensor_util(source, call, outer)
        and isinstance(call.args[0].value, cst.Call)
        and _is_tensor_util(source, call.args[0].value, inner)
    )


def _is_tensor_util(source: Source, call: cst.Call, name: str) -> bool:
    if len(call.args) != (2 if name == "to_device" else 1) or any(arg.star for arg in call.args):
        return False
    return any(qualified.endswith(f".tensor_utils.{name}") for qualified in source.names(call.func))


def _swapped(move: cst.Call) -> cst.Call:
    first, *device = move.args
    convert = first.value
    moved = move.with_changes(
        args=[first.with_changes(value=convert.args[0].value), *device], lpar=(), rpar=()
    )
    return convert.with_changes(
        args=[convert.args[0].with_changes(value=moved)], lpar=move.lpar, rpar=move.rpar
    )


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
        missing="no language model is loaded while the file is imported",
    ),
    "float_on_device": Fixer(
        "images",
        ("algo/*.py",),
        _conversions,
        "write TensorUtils.to_float(TensorUtils.to_device(batch, device))",
        words=("noise_pred_net", "def process_batch_for_training(", "to_float(", "to_device("),
        missing="no batch is converted to float and then moved",
    ),
}
