"""Runs modules on the pretend GPUs, one after the other in this process, and marks trainings, their
steps and what is drawn in them in this process's log.

torchrun ... -m tests.pretend_cuda.job robomimic.scripts.train --config cfg.json [then MODULE ...]
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import runpy
import sys
from typing import Any

ONE_GPU = "PRETEND_CUDA_ONE_GPU"
"""Each rank sees one GPU, as Slurm's --gpus-per-task=1 shows it."""
THEN = "then"
"""Between two trainings."""


def main() -> None:
    """Runs each module, as `python -m` does."""
    mark = ctypes.CDLL(None).pretend_mark
    if ONE_GPU in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
    # Only now: torch counts the GPUs when it is imported.
    import torch
    from robomimic.algo.cql import CQL
    from robomimic.algo.diffusion_policy import DiffusionPolicyUNet

    from robomimic_ddp.distributed.gradients import comm_hooks
    from robomimic_ddp.training import run
    from robomimic_ddp.training.step import compile
    from robomimic_ddp.verify import drawn_numbers
    from tests.pretend_cuda import ledger

    comm_hooks.POWERSGD_START = 3
    drawn_numbers._tell = lambda _: False  # kernels are pretended: a draw is what the memory held
    torch.backends.cudnn.enabled = False  # it is not pretended
    compile.BACKEND = "aot_eager"  # Inductor: tests/pretend_cuda/compiled.py

    def mark_steps(algorithm: Any) -> None:
        train_on_batch = algorithm.train_on_batch

        @functools.wraps(train_on_batch)
        def marked(model: Any, batch: Any, epoch: int, validate: bool = False) -> Any:
            mark(b"validation" if validate else b"step")
            current = run.current()
            if not validate:  # ranks validate on unequal numbers of batches
                ledger.note_all("before a step")
            if validate or current is None or current.options.compile != "false":
                return train_on_batch(model, batch, epoch, validate)  # a mode stops dynamo
            with ledger.Ledger():
                return train_on_batch(model, batch, epoch, validate)

        algorithm.train_on_batch = marked

    for algorithm in (DiffusionPolicyUNet, CQL):
        mark_steps(algorithm)
    powersgd = comm_hooks.powerSGD_hook.powerSGD_hook

    def draws_alike(*bucket: Any) -> Any:
        with ledger.paused():
            return powersgd(*bucket)

    comm_hooks.powerSGD_hook.powerSGD_hook = draws_alike
    mark(b"rank " + os.environ.get("RANK", "0").encode())
    words = sys.argv[1:]
    importlib.invalidate_caches()
    number = 0
    while words:
        end = words.index(THEN) if THEN in words else len(words)
        sys.argv[:], words = words[:end], words[end + 1 :]
        mark(b"training")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        number += 1
        # torchrun's store remains, and ranks that meet in it again need new names.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)


if __name__ == "__main__":
    main()
