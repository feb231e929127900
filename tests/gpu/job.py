"""Runs a module of the host's as it stands, counts how often a step waits for the GPU, notes which
GPUs this process uses, and can plant a fault in the third step of a rank.

    torchrun ... -m tests.gpu.job REPORTS raise|oom|kill|sleep|none@RANK MODULE ARGUMENTS...

Writes REPORTS/rank<k>.json at each step: {"waits": [of each step], "places": [...], "gpus": [...]}.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from robomimic.algo.diffusion_policy import DiffusionPolicyUNet

RANK = int(os.environ.get("RANK", "0"))
STEP_OF_FAULT = 3


class Watch:
    """What this rank has done so far."""

    def __init__(self, reports: Path, fault: str) -> None:
        kind, _, rank = fault.partition("@")
        self.fault = kind if int(rank or 0) == RANK else "none"
        self.path, self.waits, self.places = reports / f"rank{RANK}.json", [0], []
        warnings.simplefilter("always")
        warnings.showwarning = self.warned

    def warned(self, message: Any, category: Any, *where: Any, **more: Any) -> None:
        """torch warns of each operation that waits for the GPU."""
        if "synchronizing" not in str(message):
            return
        self.waits[-1] += 1
        frames = traceback.extract_stack()[-6:-2]
        place = " > ".join(f"{Path(one.filename).name}:{one.lineno}" for one in frames)
        if place not in self.places:
            self.places.append(place)

    def step(self) -> None:
        """At the beginning of a training step."""
        if torch.cuda.is_initialized():
            torch.cuda.set_sync_debug_mode("warn")
        if len(self.waits) == STEP_OF_FAULT:
            self.fail()
        told = {"waits": self.waits, "places": self.places, "gpus": gpus_in_use()}
        self.path.write_text(json.dumps(told))
        self.waits.append(0)

    def fail(self) -> None:
        if self.fault != "none":
            print(f"planted {self.fault} at time {time.time()}", file=sys.__stderr__, flush=True)
        if self.fault == "raise":
            raise RuntimeError("planted on purpose")
        if self.fault == "oom" and torch.cuda.is_initialized():
            torch.empty(2**50, device="cuda")
        if self.fault == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 1024 TiB")
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "sleep":
            time.sleep(3600)


def gpus_in_use() -> list[int]:
    """The visible GPUs on which this process has a context."""
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [gpu for gpu in range(count) if torch._C._cuda_hasPrimaryContext(gpu)]


def main() -> None:
    """Runs the module, as `python -m` does."""
    reports, fault, *words = sys.argv[1:]
    watch, train_on_batch = Watch(Path(reports), fault), DiffusionPolicyUNet.train_on_batch

    @functools.wraps(train_on_batch)
    def watched(model: Any, batch: Any, epoch: int, validate: bool = False) -> Any:
        if not validate:
            watch.step()
        elif torch.cuda.is_initialized():
            torch.cuda.set_sync_debug_mode("default")
        return train_on_batch(model, batch, epoch, validate)

    DiffusionPolicyUNet.train_on_batch = watched
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
