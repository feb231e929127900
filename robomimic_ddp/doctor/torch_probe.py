"""`python -m robomimic_ddp.doctor.torch_probe`: prints, as one line of JSON, what torch says."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import warnings
from typing import Any


def probe() -> dict[str, Any]:
    """torch's version, builds, devices; under "error" why it could not be imported."""
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # whatever a broken build raises is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda or torch.version.hip,
        "distributed": dist.is_available(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "driver_cuda": _driver_cuda(torch),
        "torchvision": torchvision_library(torch),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
        if found["cuda_build"] and not found["gpus"]:
            try:
                torch.cuda.init()
            except Exception as error:  # the driver's own words
                found["cuda_error"] = str(error).splitlines()[0]
    found["warnings"] = sorted({str(warning.message).splitlines()[0] for warning in caught})
    return found


def torchvision_library(torch: Any) -> str | None:
    """Why torchvision's compiled operators do not fit this torch; None where they do.

    Under the name of the package, whose own import pulls in torch's compiler: seconds.
    """
    try:
        spec = importlib.util.find_spec("torchvision")
        if spec is None:
            return "ModuleNotFoundError: No module named 'torchvision'"
        package = types.ModuleType("torchvision")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["torchvision"] = package
        importlib.import_module("torchvision.extension")  # silent where the library does not load
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    fits = hasattr(torch.ops.torchvision, "nms")
    return None if fits else "RuntimeError: operator torchvision::nms does not exist"


def _driver_cuda(torch: Any) -> str | None:
    """The newest CUDA that the GPUs' driver knows, such as "12.4"; None without a driver."""
    try:
        number = int(torch._C._cuda_getDriverVersion())  # 12040
    except Exception:  # a build without CUDA, or for another kind of GPU
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    others = [other for other in range(torch.cuda.device_count()) if other != index]
    found = {
        "name": properties.name,
        "memory": properties.total_memory,
        "peers": [o for o in others if torch.cuda.can_device_access_peer(index, o)],
    }
    try:
        found["free"] = torch.cuda.mem_get_info(index)[0]
    except Exception as error:  # a device in a bad state: its words say which
        found["error"] = str(error).splitlines()[0]
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
