"""`python -m robomimic_ddp.commands.doctor.probes torch|torchvision|tensorflow` prints a line of
JSON on the package and its devices, or {"error": why it cannot be imported}.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def probe_torch() -> dict[str, Any]:
    """torch's version, builds, devices."""
    import torch
    import torch.distributed as dist

    found: dict[str, Any] = {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda or torch.version.hip,
        "distributed": dist.is_available(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "driver_cuda": _driver_cuda(torch),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
        if found["cuda_build"] and not found["gpus"]:
            try:
                torch.cuda.init()
            except Exception as error:  # the driver's message
                found["cuda_error"] = str(error).splitlines()[0]
    found["warnings"] = sorted({str(warning.message).splitlines()[0] for warning in caught})
    return found


def probe_torchvision() -> dict[str, Any]:
    """Raises if its compiled operators do not match torch; torchvision 0.15 imports without."""
    import torch
    import torchvision  # noqa: F401

    if not hasattr(torch.ops.torchvision, "nms"):
        raise RuntimeError("operator torchvision::nms does not exist")
    return {}


def probe_tensorflow() -> dict[str, Any]:
    """TensorFlow's version, and how many GPUs it sees in a rank that reads RLDS data."""
    from robomimic_ddp.data.rlds.tf_import import import_tensorflow, import_tensorflow_datasets

    import_tensorflow_datasets()
    tensorflow = import_tensorflow()
    gpus = tensorflow.config.get_visible_devices("GPU")
    return {"gpus": len(gpus), "version": tensorflow.__version__}


def _driver_cuda(torch: Any) -> str | None:
    """The newest CUDA version of the driver, such as "12.4"; None without a driver."""
    try:
        number = int(torch._C._cuda_getDriverVersion())  # 12040
    except Exception:  # a build without CUDA, or for other GPUs
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
    except Exception as error:  # a device in a bad state
        found["error"] = str(error).splitlines()[0]
    return found


def _main(package: str) -> None:
    try:
        found = globals()[f"probe_{package}"]()
    except Exception as error:  # of a broken build: any
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1])
