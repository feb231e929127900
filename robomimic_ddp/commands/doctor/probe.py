"""Imports a package in a separate process, since a broken build can crash it:
`python -m robomimic_ddp.commands.doctor.probe PACKAGE` prints a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from typing import Any

from robomimic_ddp.config import machine
from robomimic_ddp.terminal import print_clean


def probe(package: str) -> dict[str, Any]:
    """Return the version, build and devices of `package`, or {"error": why} if it cannot be
    imported.
    """
    module = "robomimic_ddp.commands.doctor.probe"
    code, text = machine.output_of(sys.executable, "-m", module, package)
    lines = text.strip().splitlines() or [f"exit code {code}, no output"]
    for line in reversed(lines):  # packages print at their end, too
        with suppress(TypeError, ValueError):
            return dict(json.loads(line))
    return {"error": f"{lines[-1]} (exit code {code})"}


def _torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.ones(1).numpy()  # raises if torch is built for another numpy
    result: dict[str, Any] = {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda or torch.version.hip,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
    }
    result["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
    if result["cuda_build"] and not result["gpus"]:
        try:
            torch.cuda.init()
        except Exception as error:  # the driver's message
            result["cuda_error"] = str(error).splitlines()[0]
    return result


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    gpu = {"name": properties.name, "memory": properties.total_memory}
    try:
        gpu["free"] = torch.cuda.mem_get_info(index)[0]
    except Exception as error:  # a device in a bad state
        gpu["error"] = str(error).splitlines()[0]
    return gpu


def _torchvision() -> dict[str, Any]:
    """Raises if its compiled operators do not match torch: torchvision 0.15 imports anyway."""
    import torch
    import torchvision

    if not hasattr(torch.ops.torchvision, "nms"):
        raise RuntimeError("operator torchvision::nms does not exist")
    return {"version": torchvision.__version__}


def _tensorflow_datasets() -> dict[str, Any]:
    """Imports the same libraries as a rank that reads RLDS data."""
    from robomimic_ddp.data.rlds.pipeline.images import require_libraries
    from robomimic_ddp.data.rlds.pipeline.resize import compiled_filter

    version = require_libraries().__version__
    resized = "numpy" if compiled_filter() is None else "numba"
    return {"version": version, "resized": resized}


_PROBES = {
    "torch": _torch,
    "torchvision": _torchvision,
    "tensorflow_datasets": _tensorflow_datasets,
}

if __name__ == "__main__":
    try:
        package = sys.argv[1]
        answer = _PROBES[package]() if package in _PROBES else {}
        importlib.import_module(package)
    except Exception as error:  # a broken build may raise any
        answer = {"error": f"{type(error).__name__}: {error}"}
    print_clean(json.dumps(answer))
