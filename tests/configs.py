"""Configurations of the host's algorithms that train for a few steps, in seconds on one core."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.datasets import CAMERA, LOW_DIM

NAME = "test"
"""Every run's experiment name."""
SMALL = [16, 16]
RLDS_CAMERAS = (
    "camera/image/varied_camera_1_left_image",
    "camera/image/varied_camera_2_left_image",
)
RLDS_STATES = ("robot_state/cartesian_position", "robot_state/gripper_position")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the nested `changes` over it; neither is altered."""
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if nested else value
    return result


def base(algo: str, dataset: Path, output: Path) -> dict[str, Any]:
    """What all algorithms share: two epochs of three steps, validation, no rollouts, CPU."""
    return {
        "algo_name": algo,
        "experiment": {
            "name": NAME,
            "validate": True,
            "logging": {"terminal_output_to_txt": True, "log_tb": True, "log_wandb": False},
            "save": {"enabled": True, "every_n_epochs": 1, "on_best_validation": True},
            "epoch_every_n_steps": 3,
            "validation_epoch_every_n_steps": 2,
            "render_video": False,
            "rollout": {"enabled": False},
        },
        "train": {
            "data": [{"path": str(dataset)}],
            "output_dir": str(output),
            "num_data_workers": 0,
            "hdf5_cache_mode": "all",
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
            "cuda": False,
            "batch_size": 4,
            "num_epochs": 2,
            "seed": 7,
        },
        "observation": {"modalities": {"obs": {"low_dim": list(LOW_DIM), "rgb": []}}},
    }


_UNET = {"diffusion_step_embed_dim": 32, "down_dims": [16, 32]}
"""Praxis ignores these keys; a test host gets them as the net's defaults (tests/hosts.py)."""
_DIFFUSION = {
    "algo": {
        "unet": _UNET,
        "ddpm": {"num_inference_timesteps": 10},  # of 100, which take most of a rollout's time
        "optim_params": {"policy": {"learning_rate": {"warmup_steps": 2}}},
    },
    "train": {"seq_length": 16, "frame_stack": 2},
}
_IMAGES = {
    "observation": {
        "modalities": {"obs": {"rgb": [CAMERA]}},
        "encoder": {
            "rgb": {
                "core_class": "VisualCore",
                "core_kwargs": {
                    "feature_dimension": 16,
                    "backbone_class": "ShallowConv",
                    "backbone_kwargs": {"output_channel": 32},
                    "pool_class": "SpatialSoftmax",
                    "pool_kwargs": {"num_kp": 8},
                },
            }
        },
    }
}
_CROPS = {
    "observation": {
        "encoder": {
            "rgb": {
                "obs_randomizer_class": "CropRandomizer",
                "obs_randomizer_kwargs": {"crop_height": 28, "crop_width": 28, "num_crops": 1},
            }
        }
    }
}
_RNN = {
    "algo": {"actor_layer_dims": [], "rnn": {"enabled": True, "horizon": 5, "hidden_dim": 16}},
    "train": {"seq_length": 5},
}
_TRANSFORMER = {
    "algo": {
        "actor_layer_dims": [],
        "transformer": {
            "enabled": True,
            "context_length": 5,
            "embed_dim": 16,
            "num_layers": 2,
            "num_heads": 2,
        },
    },
    "train": {"seq_length": 1, "frame_stack": 5},
}
_SMALL_VAE = {
    "latent_dim": 4,
    "encoder_layer_dims": SMALL,
    "decoder_layer_dims": SMALL,
    "prior_layer_dims": SMALL,
}
_BCQ = {"critic": {"layer_dims": SMALL}, "action_sampler": {"vae": _SMALL_VAE}}
_PLANNER = {"subgoal_horizon": 5, "vae": {"enabled": True, **_SMALL_VAE}}
_ACTOR = {"actor_layer_dims": [], "rnn": {"enabled": True, "horizon": 5, "hidden_dim": 16}}
_LOW_DIM = {"modalities": {"obs": {"low_dim": list(LOW_DIM)}}}
_SUBGOALS = merged(_LOW_DIM, {"modalities": {"subgoal": {"low_dim": list(LOW_DIM)}}})
_AC = {"actor": {"layer_dims": SMALL}, "critic": {"layer_dims": SMALL}}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "diffusion_policy": ("diffusion_policy", _DIFFUSION),
    "diffusion_policy_images": ("diffusion_policy", merged(_DIFFUSION, _IMAGES)),
    "diffusion_policy_crops": ("diffusion_policy", merged(merged(_DIFFUSION, _IMAGES), _CROPS)),
    "bc": ("bc", {"algo": {"actor_layer_dims": SMALL}}),
    "bc_images": ("bc", {"algo": {"actor_layer_dims": SMALL}, **_IMAGES}),
    "bc_gaussian": ("bc", {"algo": {"actor_layer_dims": SMALL, "gaussian": {"enabled": True}}}),
    "bc_gmm": ("bc", {"algo": {"actor_layer_dims": SMALL, "gmm": {"enabled": True}}}),
    "bc_vae": ("bc", {"algo": {"actor_layer_dims": [], "vae": {"enabled": True, **_SMALL_VAE}}}),
    "bc_rnn": ("bc", _RNN),
    "bc_rnn_gmm": ("bc", merged(_RNN, {"algo": {"gmm": {"enabled": True}}})),
    "bc_transformer": ("bc", _TRANSFORMER),
    "bc_transformer_gmm": ("bc", merged(_TRANSFORMER, {"algo": {"gmm": {"enabled": True}}})),
    "bcq": ("bcq", {"algo": {**_BCQ, "actor": {"enabled": True, "layer_dims": SMALL}}}),
    "cql": ("cql", {"algo": _AC}),
    "iql": ("iql", {"algo": _AC}),
    "td3_bc": ("td3_bc", {"algo": _AC}),
    "gl": (
        "gl",
        {
            "algo": {
                "subgoal_horizon": 5,
                "ae": {"planner_layer_dims": SMALL},
                "vae": {"enabled": False},
            },
            "observation": _SUBGOALS,
            "train": {"seq_length": 5},
        },
    ),
    "gl_vae": (
        "gl",
        {"algo": _PLANNER, "observation": _SUBGOALS, "train": {"seq_length": 5}},
    ),
    "hbc": (
        "hbc",
        {
            "algo": {"subgoal_update_interval": 5, "planner": _PLANNER, "actor": _ACTOR},
            "observation": {"planner": _SUBGOALS, "actor": _LOW_DIM, "modalities": None},
            "train": {"seq_length": 5},
        },
    ),
    "iris": (
        "iris",
        {
            "algo": {
                "subgoal_update_interval": 5,
                "value_planner": {"planner": _PLANNER, "value": _BCQ, "num_samples": 5},
                "actor": _ACTOR,
            },
            "observation": {
                "value_planner": {"planner": _SUBGOALS, "value": _LOW_DIM},
                "actor": _LOW_DIM,
                "modalities": None,
            },
            "train": {"seq_length": 5},
        },
    ),
}
"""Variant -> (algo_name, changes over `base`). Every algorithm of the host is here."""


def uses_images(variant: str) -> bool:
    """Whether the variant needs a dataset with a camera."""
    return variant.endswith(("_images", "_crops"))


def make_config(
    variant: str, dataset: Path, output: Path, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole configuration of a variant, with the caller's nested `changes` on top."""
    algo, own = VARIANTS[variant]
    config = merged(merged(base(algo, dataset, output), own), changes or {})
    if config["observation"].get("modalities", {}) is None:  # hierarchical: one set for each part
        del config["observation"]["modalities"]
    return config


def make_rlds_config(
    folder: Path, output: Path, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A small image policy on the demo task's RLDS data in `folder` (fixture `demo_dataset`)."""
    actions = ["action/abs_pos", "action/abs_rot_6d", "action/gripper_position"]
    own = {
        "train": {
            "data_format": "droid_rlds",
            "data_path": str(folder),
            "dataset_names": ["reach_demo"],
            "data_cache_dir": str(output.parent / "cache"),
            "action_keys": actions,
            "action_config": {key: {"normalization": "min_max"} for key in actions},
        },
        "observation": {
            "image_dim": [32, 32],
            "modalities": {"obs": {"rgb": list(RLDS_CAMERAS), "low_dim": list(RLDS_STATES)}},
        },
    }
    config = make_config("diffusion_policy_images", folder, output, merged(own, changes or {}))
    for key in ("data", "hdf5_filter_key", "hdf5_validation_filter_key"):
        del config["train"][key]
    return config


def write_config(path: Path, config: Mapping[str, Any]) -> Path:
    """Writes a configuration as JSON and returns `path`."""
    path.write_text(json.dumps(config, indent=1))
    return path


def frozen_from(checkpoint: Path) -> dict[str, Any]:
    """Return changes with which one epoch begins from a checkpoint and leaves its weights as they
    are: learning rate and weight decay are 0.
    """
    frozen = {"learning_rate": {"initial": 0.0}, "regularization": {"L2": 0.0}}
    return {
        "algo": {"optim_params": {"policy": frozen}},
        "experiment": {"ckpt_path": str(checkpoint)},
        "train": {"num_epochs": 1},
    }


ConfigMaker = Callable[..., Path]
"""Type of the fixture `config_file`: (variant, changes) -> path of a JSON file."""
