"""The host's nets in small, and diffusers' own averages of them, of either API."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import module_key, parallel
from tests.ranks.toy import Encoder


def diffusers_average(nets: nn.Module, old: str | None, **settings: Any) -> Any:
    """The installed EMAModel(parameters=), or EMAModel(model=) of the file `old` (the fixture
    `old_training_utils`).
    """
    if old is None:
        from diffusers.training_utils import EMAModel

        return EMAModel(parameters=nets.parameters(), **settings)
    spec = importlib.util.spec_from_file_location("diffusers_old.training_utils", old)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EMAModel(model=nets, **settings)


def of_host(nets: nn.Module, old: str | None) -> Any:
    """The average that the host makes with that diffusers."""
    warm_up = {} if old else {"use_ema_warmup": True}
    return diffusers_average(nets, old, power=0.75, **warm_up)


def build(mode: str, has_key: bool) -> nn.ModuleDict:
    """The two nets in the host's layout; DataParallel's key layout is DROID's."""
    torch.manual_seed(0)
    nets = {"obs_encoder": Encoder(), "noise_pred_net": nn.Linear(6, 4)}
    for name, net in nets.items():
        if mode != "single":
            parallel.parallelise(net, mode, parallel.ddp_options(Options(), net), name)
        net = module_key.accept_any_layout(net)
        nets[name] = module_key.ModuleKey(net) if has_key else net
    return nn.ModuleDict({"policy": nn.ModuleDict(nets)})
