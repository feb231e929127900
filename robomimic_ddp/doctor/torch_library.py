"""`python -m robomimic_ddp.doctor.torch_library`: what `torch_probe` prints, from torch's compiled
library alone: importing all of torch takes seconds. {"error": ...} where that is not enough.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

_OF_GPUS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Drivers' files: NVIDIA's, WSL's, AMD's. What GPUs are like is asked of all of torch."""


def probe() -> dict[str, Any]:
    """As `torch_probe.probe`, on a machine without GPUs; raises an exception for whatever is not
    as usual, which a whole import then explains.
    """
    if any(os.path.exists(file) for file in _OF_GPUS):
        raise RuntimeError("there are GPUs to be asked about")
    torch = _in_place_of("torch")
    version = importlib.import_module("torch.version")
    _require_whole(version.__version__)
    ctypes.CDLL(str(torch / "lib" / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    library = importlib.import_module("torch._C")
    sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
    distributed = library._c10d_init() and library._distributed_c10d
    cuda_build = version.cuda or version.hip
    found = {
        "version": version.__version__,
        "cuda_build": cuda_build,
        "distributed": bool(distributed),
        "gloo": hasattr(distributed, "ProcessGroupGloo"),
        "nccl": hasattr(distributed, "ProcessGroupNCCL"),
        "driver_cuda": None,
        "gpus": [],
        "warnings": [],
    }
    if library._cuda_getDeviceCount() if cuda_build else 0:
        raise RuntimeError("there are GPUs to be asked about")
    if cuda_build:
        try:
            library._cuda_init()
        except RuntimeError as error:  # the driver's own words
            found["cuda_error"] = str(error).splitlines()[0]
    _require_torchvision(library, version.cuda)
    return {**found, "torchvision": None}


def _in_place_of(package: str) -> Path:
    """The folder of `package`, from which its modules can be imported now without its own code."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    stand_in = types.ModuleType(package)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[package] = stand_in
    return Path(stand_in.__path__[0])


def _require_whole(version: str) -> None:
    """The files are of the installed version, and what torch imports is installed, too."""
    installed = importlib.metadata.version("torch").partition("+")[0]
    if installed != version.partition("+")[0]:
        raise RuntimeError(f"torch {installed} is installed, its files are of {version}")
    for line in importlib.metadata.requires("torch") or ():
        if ";" not in line:
            importlib.metadata.version(re.match(r"[\w.-]+", line).group())


def _require_torchvision(library: Any, cuda: str | None) -> None:
    """Its operators load into this torch, and are built for the same CUDA."""
    ctypes.CDLL(str(_in_place_of("torchvision") / "_C.so"))
    if not library._dispatch_has_kernel("torchvision::nms"):
        raise RuntimeError("operator torchvision::nms does not exist")
    built_for, _ = library._jit_get_operation("torchvision::_cuda_version")
    number = built_for()  # 13000; -1 without CUDA
    if number > 0 and cuda and number // 1000 != int(cuda.partition(".")[0]):
        raise RuntimeError(f"torchvision is built for CUDA {number // 1000}, torch for {cuda}")


if __name__ == "__main__":
    try:
        print(json.dumps(probe()))
    except Exception as error:  # whatever a broken build raises
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
