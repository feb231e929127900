"""`python -m robomimic_ddp.doctor.torchvision_probe`: prints, as JSON, why torchvision cannot be
imported, or null.
"""

from __future__ import annotations

import importlib
import json


def why_not(module: str) -> str | None:
    """None where the module imports, or lacks torch alone; else the error."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return None if error.name == "torch" else f"{type(error).__name__}: {error}"
    except Exception as error:  # "operator torchvision::nms does not exist" is a RuntimeError
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps({"error": why_not("torchvision")}))
