"""Runs a module on the pretend GPUs and marks each training step in this process's log.

    torchrun ... -m tests.pretend_cuda.job robomimic.scripts.train --config cfg.json
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import runpy
import sys
from typing import Any

import torch
from robomimic.algo.diffusion_policy import DiffusionPolicyUNet

MARK = ctypes.CDLL(None).pretend_mark


def main() -> None:
    """Runs the module named first, as `python -m` does."""
    torch.backends.cudnn.enabled = False  # it is not pretended
    train_on_batch = DiffusionPolicyUNet.train_on_batch

    @functools.wraps(train_on_batch)
    def marked(model: Any, batch: Any, epoch: int, validate: bool = False) -> Any:
        MARK(b"validation" if validate else b"step")
        return train_on_batch(model, batch, epoch, validate)

    DiffusionPolicyUNet.train_on_batch = marked
    MARK(b"rank %d" % _rank())
    sys.argv[:] = sys.argv[1:]
    importlib.invalidate_caches()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _rank() -> int:
    from robomimic_ddp import env

    return env.read_launch_env().rank


if __name__ == "__main__":
    main()
