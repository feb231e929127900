"""The host's diffusion policy and a batch for it, as `bench step` measures them."""

from __future__ import annotations

from functools import partial
from typing import Any

OBSERVATIONS = {"robot0_eef_pos": [3], "robot0_eef_quat": [4], "robot0_gripper_qpos": [2]}
ACTIONS = 7


def cameras(job: dict[str, Any]) -> dict[str, list[int]]:
    """Camera keys and shapes [3, H, W] of a job; none without `cameras`."""
    pixels = job.get("pixels", 128)
    return {f"camera{number}_image": [3, pixels, pixels] for number in range(job.get("cameras", 0))}


def make_config(job: dict[str, Any]) -> Any:
    """The host's defaults for a diffusion policy with the job's cameras."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = list(OBSERVATIONS)
        config.observation.modalities.obs.rgb = list(cameras(job))
        config.train.batch_size = job["batch"]
        for section in config.algo.optim_params.values():
            section["num_train_batches"], section["num_epochs"] = 1000, 100
    return config


def make_model(config: Any, job: dict[str, Any], device: str = "cpu") -> Any:
    """The host's algorithm; with a net of `down_dims` channels, which the host's config does not
    reach.
    """
    import robomimic.models.diffusion_policy_nets as DPNets
    import robomimic.utils.obs_utils as ObsUtils
    import torch
    from robomimic.algo import algo_factory

    if job.get("down_dims"):
        DPNets.ConditionalUnet1D = partial(DPNets.ConditionalUnet1D, down_dims=job["down_dims"])
    ObsUtils.initialize_obs_utils_with_config(config)
    return algo_factory(
        config.algo_name,
        config,
        obs_key_shapes={**OBSERVATIONS, **cameras(job)},
        ac_dim=ACTIONS,
        device=torch.device(device),
    )


def make_batch(config: Any, job: dict[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Random numbers in the shape of a batch of the host's loader, each rank's its own: states
    [B, T, D], uint8 pictures [B, T, H, W, 3], actions [B, T, A].
    """
    import torch

    samples = job["batch"] if samples is None else samples
    horizon = config.algo.horizon
    steps = horizon.observation_horizon + horizon.prediction_horizon - 1
    draw = torch.Generator().manual_seed(job.get("rank", 0))
    batch = {
        "obs": {
            key: torch.randn(samples, steps, *shape, generator=draw)
            for key, shape in OBSERVATIONS.items()
        },
        "actions": torch.rand(samples, steps, ACTIONS, generator=draw) * 2 - 1,
    }
    for key, (colours, *size) in cameras(job).items():
        # Of the moments that the policy looks at: hosts cut the others off before all else.
        shape = (samples, horizon.observation_horizon, *size, colours)
        batch["obs"][key] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    return batch
