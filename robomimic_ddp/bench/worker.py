"""A process of `bench step`: the host's diffusion policy, an answer for each line of stdin.

Run by itself it uses the host as it is; under `robomimic-ddp run`, with the edits in memory. On
several ranks each is such a process, and all get the same lines:

step: a step, timed; local: a step whose gradients stay on the rank; profile: a step, and when
all-reduces ran; memory: bytes of tensors by kind; parts: a step, and where its backward pass began
and ended; samples N: batches of N samples from now on; sent: bytes that all-reduces would be given,
by ddp.comm; reduce N: an all-reduce of N bytes, timed.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from robomimic_ddp import env

OBSERVATIONS = {"robot0_eef_pos": [3], "robot0_eef_quat": [4], "robot0_gripper_qpos": [2]}
ACTIONS = 7


def main(job: dict[str, Any]) -> None:
    """Answers until stdin ends. `job`: batch, threads; down_dims (empty: the host's), variant and
    rank on several ranks.
    """
    import torch

    from robomimic_ddp.bench import loops, parts, tensors

    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    config = make_config(job)
    by_hand = loops.BY_HAND.get(job.get("variant"))
    with nullcontext() if by_hand else _run(config):
        model = make_model(config, job.get("down_dims"))
        batch = make_batch(config, job["batch"], job.get("rank", 0))
        parameters = sum(p.numel() for p in model.nets.parameters() if p.requires_grad)
        model.bench_ranks = job.get("world", 1)
        for _ in range(1) if by_hand else _epochs(model):
            model.set_train()
            loop = (by_hand or loops.HostLoop)(model, batch)
            if by_hand:
                torch.manual_seed(1 + job["rank"])
            _tell({"parameters": parameters})
            answers = {
                "step": partial(take_step, loop),
                "local": partial(take_step, loop, reduces=False),
                "profile": partial(profiled, loop),
                "memory": lambda loop=loop: tensors.tensor_bytes(loop.tensors()),
                "parts": partial(parts.step_in_parts, loop),
                "samples": partial(_change_batch, loop, config, job),
                "sent": partial(parts.bytes_sent, model.nets),
                "reduce": parts.all_reduce,
            }
            for line in sys.stdin:
                word, *numbers = line.split()
                _tell(answers[word](*map(int, numbers)))
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


def make_model(config: Any, down_dims: list | None = None) -> Any:
    """The host's algorithm on the CPU; with a net of `down_dims` channels, which the host's config
    does not reach.
    """
    import robomimic.models.diffusion_policy_nets as DPNets
    import robomimic.utils.obs_utils as ObsUtils
    import torch
    from robomimic.algo import algo_factory

    if down_dims:
        DPNets.ConditionalUnet1D = partial(DPNets.ConditionalUnet1D, down_dims=down_dims)
    ObsUtils.initialize_obs_utils_with_config(config)
    return algo_factory(
        config.algo_name,
        config,
        obs_key_shapes=OBSERVATIONS,
        ac_dim=ACTIONS,
        device=torch.device("cpu"),
    )


def make_batch(config: Any, samples: int, rank: int = 0) -> dict[str, Any]:
    """Random numbers in the shape of a batch of the host's loader, each rank's its own."""
    import torch

    horizon = config.algo.horizon
    steps = horizon.observation_horizon + horizon.prediction_horizon - 1
    draw = torch.Generator().manual_seed(rank)
    return {
        "obs": {
            key: torch.randn(samples, steps, *shape, generator=draw)
            for key, shape in OBSERVATIONS.items()
        },
        "actions": torch.rand(samples, steps, ACTIONS, generator=draw) * 2 - 1,
    }


def _change_batch(loop: Any, config: Any, job: dict[str, Any], samples: int) -> dict[str, int]:
    loop.batch = make_batch(config, samples, job.get("rank", 0))
    return {"samples": samples}


def take_step(loop: Any, reduces: bool = True) -> dict[str, float]:
    """Collective on several ranks: one step, timed."""
    from robomimic_ddp.bench import loops

    with ExitStack() as undo:
        if not reduces:
            loops.without_reduction(loop, undo)
        wall, cpu = time.perf_counter(), time.process_time()
        loss = loop.step()
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "loss": loss,
            "peak_rss_mb": env.peak_memory() / 1e6,
        }


def profiled(loop: Any) -> dict[str, float]:
    """Collective: seconds of a step, and seconds of it in which an all-reduce ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        wall = time.perf_counter()
        loop.step()
        wall = time.perf_counter() - wall
    ranges = [
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in found.events()
        if "all_reduce" in event.name or "allreduce" in event.name
    ]
    return {"wall": wall, "reducing": covered(ranges)}


def covered(ranges: list[tuple[float, float]]) -> float:
    """Length of the union of (start, end) ranges."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(ranges):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _tell(answer: dict[str, Any]) -> None:
    print(f"bench {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
