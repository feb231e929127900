"""Loads a checkpoint in the host alone and takes an action: python -m tests.e2e.acting FILE."""

import sys

import numpy as np
from robomimic.utils import file_utils

if __name__ == "__main__":
    policy, content = file_utils.policy_from_checkpoint(ckpt_path=sys.argv[1], device="cpu")
    raw = content["shape_metadata"]["all_shapes"]
    raw = {key: shape if len(shape) < 3 else [*shape[1:], shape[0]] for key, shape in raw.items()}
    policy.start_episode()
    action = policy({key: np.zeros((2, *shape), "float32") for key, shape in raw.items()})
    assert "robomimic_ddp" not in sys.modules and np.isfinite(action).all()
    print("action of", len(action))
