"""A process of `scripts.bench.step` and `scripts.bench.fsdp`: trains the host's diffusion policy,
with an answer for each line of stdin.

A line is "time", "profile" or "state" and a number of steps to take together; all ranks of a
variant get the same lines. Uses the host unedited, or, under `robomimic-ddp run`, edited in memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config import launch_env, machine
from robomimic_ddp.monitoring.profiler import computed
from scripts.bench.step import ACCELERATE, FABRIC, HOST, OURS

OBSERVATIONS = {"robot0_eef_pos": [3], "robot0_eef_quat": [4], "robot0_gripper_qpos": [2]}
ACTIONS = 7

Step = Callable[[], float]


def main(job: dict[str, Any]) -> None:
    """Answers until stdin ends. `job`: the fields of step.Job, `variant` and `rank`."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    on_gpu = job["device"] != "cpu"
    torch.backends.cudnn.benchmark = on_gpu  # as in the host's get_torch_device
    config, ours = make_config(job), job["variant"] == OURS
    import robomimic.scripts.train as host

    edited = getattr(host.train, "is_distributed", False)
    if edited != ours:
        sys.exit(
            f"the robomimic that Python imports {'was edited' if edited else 'was not edited'}, so "
            f"it cannot be measured as {job['variant']!r}. Use `robomimic-ddp revert` on it, or an "
            "installation that was not edited."
        )
    with ExitStack() as stack:
        samples = job["batch"]
        if ours:
            from robomimic_ddp import api
            from robomimic_ddp.monitoring import step_hooks
            from robomimic_ddp.training import session

            started = stack.enter_context(session.start(config, use_cuda=on_gpu))
            samples = started.plan.samples_per_rank  # several batches with accumulation
        model = make_model(config, job)
        batch = make_batch(config, job, samples)
        parameters = sum(p.numel() for p in model.nets.parameters() if p.requires_grad)
        if ours:
            epochs = api.epochs(range(1, 2), model)
            stack.callback(epochs.close)  # what follows an epoch is not measured
            next(epochs)
        model.set_train()
        if ours:
            stack.enter_context(step_hooks.installed(model))
        step = partial(host_step, model, batch)
        if job["variant"] not in (HOST, OURS):
            wrap = {ACCELERATE: wrap_by_accelerate, FABRIC: wrap_by_fabric}
            step = step_by_hand(model, batch, wrap.get(job["variant"], wrap_by_ddp))
            if job["rank"]:  # other noise on other ranks
                torch.manual_seed(1 + job["rank"])
        _answer({"parameters": parameters, "samples": samples})
        answers = {"time": timed, "profile": profiled, "state": partial(state_bytes, model)}
        for line in sys.stdin:
            request, count = line.split()
            _answer(answers[request](step, int(count)))


def make_config(job: dict[str, Any]) -> Any:
    """The host's defaults for a diffusion policy with the job's cameras."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = list(OBSERVATIONS)
        config.observation.modalities.obs.rgb = list(_cameras(job))
        config.train.batch_size = job["batch"]
        for section in config.algo.optim_params.values():
            section["num_train_batches"], section["num_epochs"] = 1000, 100
    return config


def make_model(config: Any, job: dict[str, Any]) -> Any:
    """The host's algorithm, with the job's channels, which its config does not have."""
    import robomimic.models.diffusion_policy_nets as DPNets
    import robomimic.utils.obs_utils as ObsUtils
    from robomimic.algo import algo_factory

    if job["down_dims"]:
        DPNets.ConditionalUnet1D = partial(DPNets.ConditionalUnet1D, down_dims=job["down_dims"])
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes, device = {**OBSERVATIONS, **_cameras(job)}, torch.device(job["device"])
    return algo_factory(
        config.algo_name, config, obs_key_shapes=shapes, ac_dim=ACTIONS, device=device
    )


def make_batch(config: Any, job: dict[str, Any], samples: int) -> dict[str, Any]:
    """A random batch as of the host's loader, different on each rank: states [B, T, D], uint8
    images [B, T, H, W, 3], of which the host's step uses the first ones, actions [B, T, A].
    """
    horizon, draw = config.algo.horizon, torch.Generator().manual_seed(job["rank"])
    steps = horizon.observation_horizon + horizon.prediction_horizon - 1
    obs = {
        key: torch.randn(samples, steps, *shape, generator=draw)
        for key, shape in OBSERVATIONS.items()
    }
    actions = torch.rand(samples, steps, ACTIONS, generator=draw) * 2 - 1
    for key, (colors, *size) in _cameras(job).items():
        shape = (samples, steps, *size, colors)
        obs[key] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    return {"obs": obs, "actions": actions}


def _cameras(job: dict[str, Any]) -> dict[str, list[int]]:
    return {f"camera{number}_image": [3, 128, 128] for number in range(job["cameras"])}


def host_step(model: Any, batch: dict[str, Any]) -> float:
    """One iteration of the host's run_epoch, edited or not; returns the loss. Collective on several
    ranks.
    """
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    info = model.train_on_batch(prepared, epoch=1, validate=False)
    model.on_gradient_step()
    return model.log_info(info)["Loss"]


class Policy(nn.Module):
    """The host's two nets as one module, for DDP."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.nets["policy"]["obs_encoder"]
        self.unet = model.nets["policy"]["noise_pred_net"]

    def forward(self, obs: Any, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Predicts the noise in `noisy` [B, Tp, A], as in the host's train_on_batch."""
        import robomimic.utils.tensor_utils as TensorUtils

        inputs = {"obs": obs, "goal": None}
        features = TensorUtils.time_distributed(inputs, self.encoder, inputs_as_kwargs=True)
        return self.unet(noisy, timesteps, global_cond=features.flatten(start_dim=1))


Wrapped = tuple[nn.Module, torch.optim.Optimizer, Callable[[torch.Tensor], Any]]
"""A net whose gradients are averaged over ranks, its optimizer, and its backward pass."""


def wrap_by_ddp(net: nn.Module, optimizer: torch.optim.Optimizer) -> Wrapped:
    """Collective: wrap in torch's DDP, with gradients as views of its buckets."""
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    return ddp, optimizer, torch.Tensor.backward


def wrap_by_accelerate(net: nn.Module, optimizer: torch.optim.Optimizer) -> Wrapped:
    """Collective: wrap as accelerate's quick tour does, on the CPU."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return *accelerator.prepare(net, optimizer), accelerator.backward


def wrap_by_fabric(net: nn.Module, optimizer: torch.optim.Optimizer) -> Wrapped:
    """Collective: wrap as Lightning Fabric's guide does, on the CPU."""
    from lightning_fabric import Fabric

    ranks = launch_env.read_launch_env().local_world_size
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=ranks)
    fabric.launch()
    return *fabric.setup(net, optimizer), fabric.backward


def step_by_hand(model: Any, batch: dict[str, Any], wrap: Callable[..., Wrapped]) -> Step:
    """Collective, as are its steps: return the same step, written by hand around `wrap`: fused
    AdamW, averages in one pass.
    """
    policy = Policy(model)
    group, scheduler = model.optimizers["policy"].param_groups[0], model.noise_scheduler
    settings = {name: group[name] for name in ("lr", "weight_decay")}
    net, optimizer, backward = wrap(
        policy, torch.optim.AdamW(policy.parameters(), fused=True, **settings)
    )
    averaged = [p.detach().clone() for p in policy.parameters()]
    model.ema = model.ema_nets = None  # the host's averages, which this replaces
    done = 0

    def step() -> float:
        nonlocal done
        prepared = model.process_batch_for_training(batch)
        prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
        actions = prepared["actions"]
        noise = torch.randn(actions.shape)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (len(actions),))
        noisy = scheduler.add_noise(actions, noise, timesteps)
        loss = nn.functional.mse_loss(net(prepared["obs"], noisy, timesteps), noise)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        done += 1
        with torch.no_grad():
            decay = min(0.9999, 1 - (1 + done) ** -0.75)  # as in the host's averages
            torch._foreach_lerp_(averaged, list(policy.parameters()), 1 - decay)
        return loss.item()

    return step


def timed(step: Step, count: int) -> dict[str, float]:
    """Seconds of one of `count` steps that are timed together. Collective on several ranks."""
    on_gpu = torch.cuda.is_initialized()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        loss = step()
    wait()
    return {
        "wall": (time.perf_counter() - wall) / count,
        "cpu": (time.process_time() - cpu) / count,
        "loss": loss,
        "peak_rss_mb": machine.peak_memory() / 1e6,
        "device_peak_mb": torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0.0,
    }


def profiled(step: Step, count: int) -> dict[str, float]:
    """Share of time in which the GPU computes in `count` steps, and breaks of compiled graphs."""
    from torch._dynamo.utils import counters

    measured = {"gpu_busy": 0.0, "graph_breaks": sum(counters["graph_break"].values())}
    if torch.cuda.is_initialized():
        activities = [torch.profiler.ProfilerActivity.CUDA]
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            seconds = timed(step, count)["wall"] * count
        measured["gpu_busy"] = min(1.0, computed(profile.events()) / seconds)
    return measured


def state_bytes(model: Any, step: Step, count: int) -> dict[str, int]:
    """Bytes that this rank keeps of weights, gradients, moments and averages (with buffers) after
    `count` steps. Collective on several ranks.
    """
    from robomimic_ddp.distributed import host_algo

    for _ in range(count):
        step()
    weights = [*model.nets.parameters()]
    sizes = {
        "weights": _bytes_by_place(weights),
        "gradients": _bytes_by_place(weight.grad for weight in weights if weight.grad is not None),
        "moments": _bytes_by_place(tensor for _, tensor in host_algo.named_optimizer_state(model)),
        "averages": _bytes_by_place(tensor for _, tensor in host_algo.named_state(model)),
    }
    for place in sizes["weights"]:  # the state has them, too
        sizes["averages"].pop(place, None)
    return {part: sum(places.values()) for part, places in sizes.items()}


def _bytes_by_place(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of this rank's parts by address, so that two names of one tensor count once."""
    from robomimic_ddp.distributed.gradients import fsdp

    return {local.data_ptr(): local.nbytes for local in map(fsdp.local, tensors)}


def _answer(answer: dict[str, Any]) -> None:
    print(f"bench {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
