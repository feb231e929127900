"""Chooses DDP, DataParallel, FSDP or one device, and the device and backend of a rank.

Pure functions of the launcher's environment, the options and the number of visible GPUs.
"""

from __future__ import annotations

from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.options import DEFAULTS, Options, ResolvedOptions
from robomimic_ddp.errors import LaunchError, PlanError

NAMES = {
    "ddp": "DistributedDataParallel",
    "dp": "DataParallel",
    "fsdp": "FSDP2 (fully sharded)",
    "single": "one device",
}
_NOT_SHARDED = {
    "compile": "compiled sharded nets have not been shown to equal uncompiled ones",
    "comm": "it needs hooks of DDP's buckets; FSDP reduces in fp32",
    "kwargs": "they are arguments of DistributedDataParallel, which FSDP does not use",
    "sync_batchnorm": "it has not been tested with sharded layers",
}
"""Options that FSDP does not go with, at another value than their default, and the reason."""


def mode_of(env: LaunchEnv, options: Options, gpus: int) -> str:
    """Return a key of NAMES. Raises PlanError where the launch contradicts ddp.mode."""
    asked = options.mode
    if env.world_size > 1:
        if asked in ("dp", "single"):
            raise PlanError(
                f"mode {asked} under a launcher with WORLD_SIZE={env.world_size}: {env.world_size} "
                "processes would each train a separate model. Use mode auto or ddp, or start one "
                "plain python process."
            )
        return "fsdp" if asked == "fsdp" else "ddp"
    if asked == "fsdp":
        raise PlanError(
            "mode fsdp with one rank: found WORLD_SIZE 1 or none, and there is nothing to shard "
            "over. Start one process for each GPU: torchrun --nproc_per_node=NUMBER_OF_GPUS -m "
            "MODULE ... (in a sweep: --ranks NUMBER_OF_GPUS), or drop the mode."
        )
    if asked == "auto":
        return "dp" if gpus >= 2 and not env.launched else "single"
    if asked == "ddp" and not env.launched:
        raise PlanError(
            "mode ddp in a plain python process: found no RANK and WORLD_SIZE, and DDP needs one "
            "process per device. Start with: torchrun --nproc_per_node=NUMBER_OF_GPUS -m MODULE "
            "..., or drop the mode."
        )
    return asked


def require_shardable(
    resolved: ResolvedOptions, ranks: int, device: str, lacks: str | None
) -> None:
    """Raises PlanError for what does not go together with FSDP."""
    options = resolved.values
    asked, reason = "ddp.mode=fsdp", lacks
    for name, why in _NOT_SHARDED.items():
        value = getattr(options, name)
        harmless = name == "sync_batchnorm" and value == "false"
        if value != DEFAULTS[name] and not harmless:
            setting = f"ddp.{name}={str(value).lower()}"
            if name == "kwargs":
                setting = f"ddp.kwargs.{next(iter(value))}"
            asked, reason = f"{setting} with ddp.mode=fsdp", why
    if options.precision == "fp16":
        asked = "ddp.precision=fp16 with ddp.mode=fsdp"
        reason = "each rank would scale its own shards' gradients; use bf16"
    if options.backend == "gloo" and device != "cpu":
        asked = "ddp.backend=gloo with ddp.mode=fsdp on GPUs"
        reason = "FSDP on GPUs communicates over NCCL"
    replicas = options.fsdp_replicas
    if replicas > 1 and (ranks % replicas or ranks == replicas):
        asked = f"ddp.fsdp_replicas={replicas} with {ranks} ranks"
        reason = "each replica needs the same number of ranks, at least two"
    if options.fsdp_offload and device == "cpu":
        asked, reason = "ddp.fsdp_offload=true on the CPU", "the shards are on it already"
    if reason is not None:
        raise PlanError(
            f"{asked} is not possible: {reason}. Leave the option at its default, or train with "
            "ddp.mode=ddp."
        )


def local_device(env: LaunchEnv, gpus: int) -> str:
    """Return `cuda:LOCAL_RANK` under a launcher, else `cuda:0`; `cpu` without GPUs. A single
    visible device is this rank's: a launcher may show each rank another (Slurm's
    --gpus-per-task=1); `group.process_group` finds ranks that share one.

    Raises LaunchError if several devices are visible, but fewer than local ranks.
    """
    if gpus <= 1:
        return "cuda:0" if gpus else "cpu"
    if env.local_rank >= gpus:
        visible = "unset" if env.cuda_visible_devices is None else env.cuda_visible_devices
        raise LaunchError(
            f"LOCAL_RANK={env.local_rank} but only {gpus} CUDA device(s) are visible "
            f"(CUDA_VISIBLE_DEVICES={visible}). "
            f"Use --nproc_per_node={gpus} or fewer, or make more devices visible."
        )
    return f"cuda:{env.local_rank}"


def backend_for(device: str, asked: str) -> str:
    """Return the backend of the process group for training on `device`. Raises PlanError for NCCL
    on the CPU.
    """
    if asked == "nccl" and device == "cpu":
        raise PlanError(
            "ddp.backend=nccl but training runs on the CPU (no visible GPU, or train.cuda=false), "
            "where NCCL cannot work. Use ddp.backend=gloo or auto, or make a GPU visible."
        )
    return "gloo" if asked == "gloo" or device == "cpu" else "cpu:gloo,cuda:nccl"
