"""Makes a complete training config: a diffusion policy on the keys that a schema finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robomimic_ddp.commands.inspect_data.fitting import Fit
from robomimic_ddp.commands.inspect_data.survey import Sample
from robomimic_ddp.config.rlds_keys import DATA_FORMAT
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.features import step_features

LARGEST_PICTURE = 128
VALIDATED_FROM = 20
"""Least episodes of a dataset for validation on a twentieth of them."""
BATCH, WINDOW, STACK, ACTED = 64, 16, 2, 8


def make(source: Source, schema: str, fit: Fit, sample: Sample, output: Path) -> dict[str, Any]:
    """The config, for train_rlds's load_from; runs are written to `output`/runs."""
    actions = fit.suggested("actions")
    return {
        "algo_name": "diffusion_policy",
        "experiment": _experiment(source),
        "train": {
            "data_format": DATA_FORMAT,
            "data_path": str(source.folder.absolute().parent.parent),
            "dataset_names": [source.folder.parent.name],
            "sample_weights": [1.0],
            "rlds_schema": schema,
            "output_dir": str(output / "runs"),
            "seq_length": WINDOW,
            "frame_stack": STACK,
            "action_keys": actions,
            "action_config": {key: {"normalization": "min_max"} for key in actions},
            "batch_size": BATCH,
            "num_epochs": 100,
            "seed": 1,
        },
        "algo": {
            "horizon": {
                "observation_horizon": STACK,
                "action_horizon": ACTED,
                "prediction_horizon": WINDOW,
            },
            "ddpm": {"enabled": False},
            "ddim": {"enabled": True, "num_train_timesteps": 100, "num_inference_timesteps": 10},
        },
        "observation": {
            **_observation(fit, _picture_size(source, fit, sample)),
            **({"image_filter": source.prepared["filter"]} if source.prepared else {}),
        },
    }


def _experiment(source: Source) -> dict[str, Any]:
    return {
        "name": source.folder.parent.name,
        "validate": sum(source.episodes_per_file) >= VALIDATED_FROM,
        "logging": {"terminal_output_to_txt": True, "log_tb": True, "log_wandb": False},
        "save": {"enabled": True, "every_n_epochs": 10, "on_best_rollout_success_rate": False},
        "epoch_every_n_steps": 1000,
        "validation_epoch_every_n_steps": 50,
        "render_video": False,
        "rollout": {"enabled": False},
    }


def _observation(fit: Fit, size: list[int]) -> dict[str, Any]:
    crop = [max(1, side * 9 // 10) for side in size]
    return {
        "image_dim": size,
        "modalities": {
            "obs": {"low_dim": fit.suggested("states"), "rgb": fit.suggested("cameras")}
        },
        "encoder": {
            "rgb": {
                "core_class": "VisualCore",
                "core_kwargs": {
                    "feature_dimension": 64,
                    "backbone_class": "ResNet18Conv",
                    "backbone_kwargs": {"pretrained": False, "input_coord_conv": False},
                    "pool_class": "SpatialSoftmax",
                    "pool_kwargs": {"num_kp": 32},
                },
                "obs_randomizer_class": "CropRandomizer",
                "obs_randomizer_kwargs": {
                    "crop_height": crop[0],
                    "crop_width": crop[1],
                    "num_crops": 1,
                    "pos_enc": False,
                },
            }
        },
    }


def _picture_size(source: Source, fit: Fit, sample: Sample) -> list[int]:
    """Height and width of delivered images: a prepared set's, else the smallest, at most 128."""
    if source.prepared:
        return source.prepared["size"]
    steps = step_features(source.features, str(source.folder))
    sizes = []
    for key in fit.suggested("cameras"):
        place = fit.schema.cameras[key].feature.replace(".", "/")
        height, width = steps[place].shape[:2] if place in steps else (None, None)
        if None in (height, width):
            frames = [one[place][0][1].shape for one in sample.frames if place in one]
            height, width = frames[0][:2] if frames else (LARGEST_PICTURE, LARGEST_PICTURE)
        sizes.append((height, width))
    return [min([LARGEST_PICTURE, *(size[axis] for size in sizes)]) for axis in (0, 1)]
