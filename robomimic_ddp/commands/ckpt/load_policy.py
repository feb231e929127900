"""Loads the policy of this folder, which `robomimic-ddp ckpt export` has written. Needs robomimic,
torch and safetensors alone.
"""

import json
from pathlib import Path

import robomimic.utils.file_utils as FileUtils
import torch
from safetensors.torch import load_file


def load_policy(folder=Path(__file__).parent, device="cpu"):
    """Return robomimic's RolloutPolicy of an exported folder: this one, or another.

    policy = load_policy()  # or load_policy("another folder")
    policy.start_episode()
    action = policy(observations)  # {name: array}, as an environment of robomimic returns them
    """
    folder = Path(folder)
    weights = load_file(folder / "model.safetensors")
    checkpoint = json.loads((folder / "metadata.json").read_text())
    checkpoint.update(json.loads((folder / "normalization.json").read_text()))
    checkpoint["config"] = (folder / "config.json").read_text()
    averaged = checkpoint.pop("weights") == "ema"
    checkpoint["model"] = {"nets": weights, "ema": weights if averaged else None}
    device = torch.device(device)
    try:
        return FileUtils.policy_from_checkpoint(device=device, ckpt_dict=checkpoint)[0]
    except RuntimeError as error:
        if "loading state_dict" not in str(error):  # torch lists each weight that does not fit
            raise
        raise RuntimeError(
            f"{FileUtils.__file__} builds another net than was exported. Use the robomimic that "
            f"trained it, with its edits ({folder / 'README.md'} names one, if the net needs it): "
            "put its folder first in PYTHONPATH"
        ) from None
