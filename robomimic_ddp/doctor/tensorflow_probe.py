"""`python -m robomimic_ddp.doctor.tensorflow_probe`: prints, as JSON, how many GPUs TensorFlow sees
in a rank that reads RLDS data.
"""

from __future__ import annotations

import json
from typing import Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.tf_import import import_tensorflow, import_tensorflow_datasets


def probe() -> dict[str, Any]:
    """{"gpus": how many, "version": TensorFlow's}, or {"error": why it cannot be imported}."""
    try:
        import_tensorflow_datasets()
        tensorflow = import_tensorflow()
    except DataError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a broken build raises is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    gpus = tensorflow.config.get_visible_devices("GPU")
    return {"gpus": len(gpus), "version": tensorflow.__version__}


if __name__ == "__main__":
    print(json.dumps(probe()))
