"""torch held to algorithms that give the same bits each time (`ddp.deterministic`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from robomimic_ddp.config import env


@contextmanager
def deterministic_algorithms(is_on: bool) -> Iterator[None]:
    """For the block, where `is_on`: torch uses deterministic algorithms only, and cuDNN does not
    choose by timing; torch raises RuntimeError at an operation that has none.

    What torch was set to before is put back; cuBLAS's workspace, an environment variable that is
    read once, stays. Not collective.
    """
    if not is_on:
        yield
        return
    env.prefer_deterministic_cublas()
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        torch.backends.cudnn.benchmark = benchmark
