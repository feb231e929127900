"""What a host's lines that make nets, optimizers and device, or weigh a loss, call."""

from __future__ import annotations

import torch
from torch import nn

from robomimic_ddp.config import launch_env
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.planning import parallel_mode
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import module_key as keys
from robomimic_ddp.distributed.gradients import parallel as wrap
from robomimic_ddp.training import run as _run


def cuda_device() -> torch.device:
    """This process's CUDA device, made the current one: cuda:LOCAL_RANK under a launcher, else
    cuda:0; the CPU where no CUDA device is visible.

    Raises LaunchError when this node has fewer visible devices than local ranks.
    """
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return torch.device("cpu")
    device = torch.device(parallel_mode.local_device(launch_env.read_launch_env(), gpus))
    torch.cuda.set_device(device)
    return device


def parallel(net: nn.Module, module_key: bool = False) -> nn.Module:
    """Return the net, trained in parallel by the present run's mode: DDP, DataParallel or one
    device.

    The net keeps its class, methods and parameter names. `module_key` keeps it under the attribute
    `module`, so that hosts whose checkpoints carry DataParallel's key keep it.
    """
    net = keys.accept_any_layout(_parallelise(net))
    return keys.accept_any_layout(keys.ModuleKey(net)) if module_key else net


def _parallelise(net: nn.Module) -> nn.Module:
    run = _run.current()
    if run is None:
        host_edits.require_whole()
        return net
    if run.plan.mode == "single":
        run.built.nets.append(net)
        return net
    ddp_options = wrap.ddp_options(run.options, net)
    run.built.nets.append(wrap.parallelise(net, run.plan.mode, ddp_options))
    return net


def scale_lr(lr: float) -> float:
    """Return the learning rate after the plan's scaling; `lr` itself where nothing is scaled."""
    run = _run.current()
    return lr if run is None else run.scale_lr(lr)


def over_ranks(value: torch.Tensor) -> torch.Tensor:
    """Collective in a training step: return the mean over ranks of a statistic of each rank's
    batch, such as the weight of a loss, as a constant of the same shape and dtype.

    Without gradients, too: what a step logs, such as TD3-BC's loss of an actor that waits for its
    turn, is that of all ranks. `value` itself on one rank, outside a run, and where the host
    validates or acts: there ranks may have unequal numbers of batches.
    """
    run = _run.current()
    if run is None or group.world_size() == 1:
        return value
    if not (run.progress.in_train_epoch or torch.is_grad_enabled()):
        return value
    return group.sum_over_ranks(value.detach()) / group.world_size()
