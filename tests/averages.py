"""diffusers' own averages, of either API."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import nn


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
