"""`ddp.debug`: lines of every rank on what it holds, reads and trains.

[rank 1/4] step 0, batch 8, loss 1.02, device cpu
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from torch import nn

from robomimic_ddp import group
from robomimic_ddp.step_logs import samples_in
from robomimic_ddp.swapping import swapped

LOSS = "Loss"


def say(line: str) -> None:
    """One line of this rank, past the streams that keep other ranks quiet."""
    out = sys.stdout if group.is_main() else sys.__stdout__
    print(f"[rank {group.rank()}/{group.world_size()}] {line}", file=out or sys.stdout, flush=True)


def tell_start(nets: Iterable[tuple[str, nn.Module]], loader: Any, device: str) -> None:
    """What this rank holds before its first step: trainable parameters of each net, its data."""
    held = ", ".join(
        f"{name} {sum(p.numel() for p in net.parameters() if p.requires_grad):,}"
        for name, net in nets
    )
    say(f"trainable parameters: {held or 'none in a parallel net'}; device {device}")
    if loader is not None:
        say(f"data: {' '.join(_data(loader))}")


def _data(loader: Any) -> Iterator[str]:
    dataset = getattr(loader, "dataset", None)
    try:
        yield f"{len(loader)} batches a pass of {len(dataset)} samples over all ranks"
    except TypeError:  # a host's own stream
        yield "a stream without length"
    if hasattr(loader, "index_stream_digest"):
        yield f"(this rank's order: {loader.index_stream_digest()[:12]})"


def told(
    run_epoch: Callable, is_on: Callable[[], bool], interval: Callable[[], int], device: Callable
) -> Callable:
    """Decorates a host's `run_epoch(model, data_loader, ...)`: where `is_on()`, every rank prints
    the shapes of its first batch, and a line at the first and every `interval()`-th train step.

    Not collective. The host's function and its result are unchanged.
    """
    signature = inspect.signature(run_epoch)
    counts = {"steps": 0}

    @functools.wraps(run_epoch)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if not is_on() or given.get("validate") or "model" not in given:
            return run_epoch(*args, **kwargs)
        teller = _Teller(given["model"], counts, interval(), device())
        with swapped(teller.model, "process_batch_for_training", teller.process):
            with swapped(teller.model, "log_info", teller.log):
                return run_epoch(*args, **kwargs)

    return wrapped


class _Teller:
    def __init__(self, model: Any, counts: dict[str, int], interval: int, device: str) -> None:
        self.model, self.counts, self.interval, self.device = model, counts, interval, device
        self.samples = 0
        self._process, self._log = model.process_batch_for_training, model.log_info

    def process(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self.counts["steps"] == 0:
            say(f"first batch: {', '.join(_shapes(batch))}")
        self.samples = samples_in(batch)
        return self._process(batch, *args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> Any:
        step_log = self._log(*args, **kwargs)
        number = self.counts["steps"]
        if number % self.interval == 0:
            loss = step_log.get(LOSS)
            shown = f"{loss:.6g}" if isinstance(loss, (int, float)) else "unknown"
            say(f"step {number}, batch {self.samples}, loss {shown}, device {self.device}")
        self.counts["steps"] += 1
        return step_log


def _shapes(nest: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(nest, dict):
        for key, value in nest.items():
            yield from _shapes(value, f"{prefix}/{key}" if prefix else str(key))
    elif hasattr(nest, "shape") and hasattr(nest, "dtype"):
        yield f"{prefix} {str(nest.dtype).replace('torch.', '')} {list(nest.shape)}"
