"""A process of `bench step`: the host's diffusion policy, a step for each line of stdin.

Run by itself it uses the host as it is; under `robomimic-ddp run`, with the edits in memory.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import Any

from robomimic_ddp import env

OBSERVATIONS = {"robot0_eef_pos": [3], "robot0_eef_quat": [4], "robot0_gripper_qpos": [2]}
ACTIONS = 7


def main(job: dict[str, Any]) -> None:
    """Takes steps until stdin ends."""
    import torch

    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    config = make_config(job)
    with _run(config):
        model = make_model(config)
        batch = make_batch(config, job["batch"])
        parameters = sum(p.numel() for p in model.nets.parameters() if p.requires_grad)
        for _ in _epochs(model):
            model.set_train()
            _tell({"parameters": parameters})
            for _line in sys.stdin:
                _tell(take_step(model, batch))
            return  # what follows an epoch is not measured


def _is_edited() -> bool:
    import robomimic.scripts.train as host

    return getattr(host.train, "is_distributed", False)


def _run(config: Any) -> Any:
    if not _is_edited():
        return nullcontext()
    from robomimic_ddp import run

    return run.start(config, use_cuda=False)


def _epochs(model: Any) -> Any:
    if not _is_edited():
        return range(1, 2)
    from robomimic_ddp import api

    return api.epochs(range(1, 2), model)


def make_config(job: dict[str, Any]) -> Any:
    """The host's defaults for a low-dim diffusion policy."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = list(OBSERVATIONS)
        config.observation.modalities.obs.rgb = []
        config.train.batch_size = job["batch"]
        for section in config.algo.optim_params.values():
            section["num_train_batches"], section["num_epochs"] = 1000, 100
    return config


def make_model(config: Any) -> Any:
    """The host's algorithm on the CPU."""
    import robomimic.utils.obs_utils as ObsUtils
    import torch
    from robomimic.algo import algo_factory

    ObsUtils.initialize_obs_utils_with_config(config)
    return algo_factory(
        config.algo_name,
        config,
        obs_key_shapes=OBSERVATIONS,
        ac_dim=ACTIONS,
        device=torch.device("cpu"),
    )


def make_batch(config: Any, samples: int) -> dict[str, Any]:
    """Random numbers in the shape of a batch of the host's loader."""
    import torch

    horizon = config.algo.horizon
    steps = horizon.observation_horizon + horizon.prediction_horizon - 1
    draw = torch.Generator().manual_seed(0)
    return {
        "obs": {
            key: torch.randn(samples, steps, *shape, generator=draw)
            for key, shape in OBSERVATIONS.items()
        },
        "actions": torch.rand(samples, steps, ACTIONS, generator=draw) * 2 - 1,
    }


def take_step(model: Any, batch: dict[str, Any]) -> dict[str, float]:
    """One iteration of the host's run_epoch, timed."""
    wall, cpu = time.perf_counter(), time.process_time()
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    info = model.train_on_batch(prepared, epoch=1, validate=False)
    model.on_gradient_step()
    loss = model.log_info(info)["Loss"]
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "loss": float(loss),
        "peak_rss_mb": env.peak_memory() / 1e6,
    }


def _tell(answer: dict[str, Any]) -> None:
    print(f"bench {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
