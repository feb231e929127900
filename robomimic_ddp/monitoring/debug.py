"""`ddp.debug`: every rank prints its parameters, data and steps.

[rank 1/4] step 0, batch 8, loss 1.02, device cpu
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group
from robomimic_ddp.monitoring.step_hooks import LOSS, StepHook
from robomimic_ddp.monitoring.step_logs import samples_in
from robomimic_ddp.terminal import print_clean

_INTERVAL = 100


def say(line: str) -> None:
    """Prints a line of this rank, past the streams that silence other ranks."""
    out = sys.stdout if group.is_main() else sys.__stdout__
    print_clean(f"[rank {group.rank()}/{group.world_size()}] {line}", file=out or sys.stdout)


def print_start(nets: Iterable[tuple[str, nn.Module]], loader: Any, device: str) -> None:
    """Prints each net's trainable parameters and this rank's data, before the first step."""
    counts = ", ".join(
        f"{name} {sum(p.numel() for p in net.parameters() if p.requires_grad):,}"
        for name, net in nets
    )
    say(f"trainable parameters: {counts or 'none in a parallel net'}; device {device}")
    if loader is not None:
        say(f"data: {' '.join(_data(loader))}")


def _data(loader: Any) -> Iterator[str]:
    dataset = getattr(loader, "dataset", None)
    try:
        yield f"{len(loader)} batches a pass of {len(dataset)} samples over all ranks"
    except Exception:  # a host's stream, or a faulty __len__, as of DROID's RLDS dataset
        yield "a stream without length"
    if hasattr(loader, "digest"):
        yield f"(this rank's order: {loader.digest()[:12]})"


class Printer(StepHook):
    """Prints, on every rank, the shapes of the first batch, and a line at the first train step and
    every 100 steps. counts: the run's, so that steps are counted over epochs.
    """

    place = "debug"

    def __init__(self, counts: dict[str, int], device: str) -> None:
        self.counts, self.device = counts, device

    def batch(self, batch: Any) -> None:
        if self.counts["steps"] == 0:
            say(f"first batch: {', '.join(_shapes(batch))}")

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        number = self.counts["steps"]
        if number % _INTERVAL == 0:
            loss = step_log.get(LOSS)
            shown = f"{loss:.6g}" if isinstance(loss, (int, float)) else "unknown"
            samples = samples_in(batch)
            say(f"step {number}, batch {samples}, loss {shown}, device {self.device}")
        self.counts["steps"] += 1
        return step_log


def _shapes(batch: Any) -> Iterator[str]:
    for name, value in tree.named(batch, "/"):
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            yield f"{name} {str(value.dtype).replace('torch.', '')} {list(value.shape)}"
