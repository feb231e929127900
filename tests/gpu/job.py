"""Runs a module of the host's as it stands, and writes down what this rank does on its GPU; can
plant a fault in the third step of a rank.

    torchrun ... -m tests.gpu.job REPORTS FAULT MODULE ARGUMENTS...

FAULT is "none", "raise", "oom", "kill" or "sleep", or
  overflow   the step's gradients are infinite
  strict     no fault: from then on a wait for the GPU within an epoch's steps is an error, unless
             it reads back one number (`Watch.allowed_to_read`); those are counted
  sharded    no fault: ddp.mode=fsdp has one rank
  exact      no fault: kernels that repeat their bits, and no TF32
  noise=X    the same, and each gradient has noise of X of its size
  replaced   the same, and each gradient is noise of its size
and may end in @RANK. Writes REPORTS/rank<k>.json at each step and at the end; see `Watch.report`.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from robomimic.algo.diffusion_policy import DiffusionPolicyUNet
from torch.optim.optimizer import register_optimizer_step_pre_hook

from robomimic_ddp.config.planning import parallel_mode
from robomimic_ddp.distributed.gradients import comm_hooks, fsdp
from robomimic_ddp.training import run
from robomimic_ddp.training.step import schedule

RANK = int(os.environ.get("RANK", "0"))
STEP_OF_FAULT = 3
_DEFAULT, _ERROR = "default", "error"
EXACT = ("exact", "noise", "replaced")


class Watch:
    """What this rank has done so far."""

    def __init__(self, reports: Path, fault: str) -> None:
        kind, _, rank = fault.partition("@")
        self.kind = kind
        self.is_mine = int(rank or RANK) == RANK
        self.path, self.steps = reports / f"rank{RANK}.json", 0
        self.reads: list[int] = []
        self.scales: list[float] = []
        self.weights: list[float] = []
        self._of_epoch = 0

    def install(self) -> None:
        """Puts the watch around the host's steps."""
        around(DiffusionPolicyUNet, "train_on_batch", self.train_on_batch)
        around(DiffusionPolicyUNet, "log_info", self.log_info)
        if self.kind == "sharded":
            around(parallel_mode, "mode_of", lambda *_: "fsdp")
            around(schedule, "shorten", shard_alone)  # where several ranks would shard
        if self.kind == "strict":
            around(torch.Tensor, "item", self.allowed_to_read)
        if self.kind == "overflow":
            around(torch.amp.GradScaler, "update", self.scaled)
        if self.kind.startswith(("noise", "replaced")):
            noise = float(self.kind.partition("=")[2] or 1)
            register_optimizer_step_pre_hook(partial(change_gradients, noise, self.kind[0] == "n"))

    def train_on_batch(
        self, host: Callable, model: Any, batch: Any, epoch: int, validate: bool = False
    ) -> Any:
        if not validate:
            self.begin_step(model)
        return host(model, batch, epoch, validate)

    def begin_step(self, model: Any) -> None:
        """Steps count from 1."""
        self.steps += 1
        self._of_epoch += 1
        if self.kind.startswith(EXACT):
            repeat_bits()
        if self.kind == "overflow":
            of_net = [one.detach().double().abs().sum() for one in model.nets.parameters()]
            self.weights.append(float(sum(of_net)))
        if self.steps == STEP_OF_FAULT and self.is_mine:
            self.fail(model)
        if self.steps >= STEP_OF_FAULT and self.kind == "strict":
            self.reads.append(0)
            _waits_are(_ERROR)
        self.report()

    def log_info(self, host: Callable, model: Any, info: Any) -> Any:
        """The last that the host's `run_epoch` asks of a step, and of its last step."""
        log = host(model, info)
        if self._of_epoch == model.global_config.experiment.epoch_every_n_steps:
            self._of_epoch = 0
            _waits_are(_DEFAULT)
        return log

    def allowed_to_read(self, item: Callable, tensor: torch.Tensor) -> Any:
        """`tensor.item()`: the one wait that a step may have, counted."""
        if not tensor.is_cuda or not torch.cuda.get_sync_debug_mode():
            return item(tensor)
        self.reads[-1] += 1
        with _waiting_allowed():
            return item(tensor)

    def scaled(self, update: Callable, scaler: Any, *args: Any) -> None:
        update(scaler, *args)
        self.scales.append(scaler.get_scale())

    def fail(self, model: Any) -> None:
        if self.kind == "overflow":
            weight = next(one for one in model.nets.parameters() if one.requires_grad)
            handle = weight.register_hook(lambda gradient: handle.remove() or gradient * torch.inf)
            return
        if not self.kind.startswith(("none", "strict", "sharded", *EXACT)):
            print(f"planted {self.kind} at time {time.time()}", file=sys.__stderr__, flush=True)
        if self.kind == "raise":
            raise RuntimeError("planted on purpose")
        if self.kind == "oom" and torch.cuda.is_initialized():
            torch.empty(2**50, device="cuda")
        if self.kind == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 1024 TiB")
        if self.kind == "kill":
            run.current().output.writer.flush()  # so that there is a state to resume from
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "sleep":
            time.sleep(3600)

    def report(self, **more: Any) -> None:
        """Writes what is known:

        gpus: the visible GPUs on which this process has a context. reads: of each strict step, the
        numbers that it read back. scales: of the gradients, after each step, and weights: a sum
        over all before each step (overflow). At the end, by_nvidia_smi: see `seen_by_nvidia_smi`.
        """
        found = {"gpus": gpus_in_use(), "reads": self.reads}
        found |= {"scales": self.scales, "weights": self.weights, **more}
        self.path.write_text(json.dumps(found))


def around(owner: Any, name: str, wrapper: Callable) -> None:
    """Replaces `owner.name` by a call of `wrapper(original, ...)`, for this process's life."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, replaced)


def shard_alone(shorten: Callable, model: Any, *args: Any) -> None:
    """Shards the model over this rank."""
    shorten(model, *args)
    current = run.current()
    fsdp.shard(model, current.options, current.plan.device)
    current.weights_for_acting = partial(fsdp.whole, model, acting=True)


def repeat_bits() -> None:
    """At each step, since the host chooses kernels by measuring them when it begins to train."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def change_gradients(noise: float, keep: bool, optimizer: Any, *_: Any) -> None:
    """Adds noise of that share of each gradient's size to it, or puts it in its place."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                generator = torch.Generator(parameter.device).manual_seed(parameter.numel())
                shape = {"device": parameter.device, "generator": generator}
                size = noise * float(parameter.grad.square().mean().sqrt())
                drawn = torch.randn(parameter.shape, **shape)
                parameter.grad.mul_(float(keep)).add_(drawn, alpha=size)


def _waits_are(mode: str) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _waiting_allowed() -> Iterator[None]:
    """For the block a wait for the GPU is no error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(_DEFAULT)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def gpus_in_use() -> list[int]:
    """The visible GPUs on which this process has a context."""
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [gpu for gpu in range(count) if torch._C._cuda_hasPrimaryContext(gpu)]


def seen_by_nvidia_smi() -> list[list[str]]:
    """Of this process and each of those that it has started, the UUIDs of the GPUs that it uses, by
    nvidia-smi. In containers that knows processes by other numbers, or none: then all are empty.
    """
    own = psutil.Process()
    pids = [own.pid, *(child.pid for child in own.children(recursive=True))]
    asked = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return [[] for _ in pids]
    return uuids_of(done.stdout, pids)


def uuids_of(rows: str, pids: Iterable[int]) -> list[list[str]]:
    """The GPUs of each of `pids` in nvidia-smi's rows "pid, uuid"."""
    cells = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines()]
    found = {tuple(cell) for cell in cells if len(cell) == 2}
    return [sorted(uuid for pid, uuid in found if pid == str(one)) for one in pids]


def main() -> None:
    """Runs the module, as `python -m` does."""
    reports, fault, *words = sys.argv[1:]
    watch = Watch(Path(reports), fault)
    watch.install()
    comm_hooks.POWERSGD_START = 2  # a check takes a few steps
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    watch.report(by_nvidia_smi=seen_by_nvidia_smi())


if __name__ == "__main__":
    main()
