"""Training loops of one net: what they share, and the host's own (edited or not).

Each takes a step on one batch over and over: forward, backward, optimizer, averaged copy, and the
loss as a number (ours on a GPU: a step later, as when it trains).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.bench.tensors import kept


class Loop:
    """What all loops share. `loaded`: an iterator of batches, or None: `batch` over and over."""

    loaded: Iterator[Any] | None = None

    def __init__(self, model: Any, batch: dict[str, Any]) -> None:
        self.model, self.batch = model, batch

    def next_batch(self) -> dict[str, Any]:
        """Of the coming step."""
        return self.batch if self.loaded is None else next(self.loaded)


class HostLoop(Loop):
    """One iteration of the host's run_epoch, however the host was edited."""

    def step(self) -> Any:
        """Collective on several ranks: the step's log, whose numbers may be known later."""
        model = self.model
        prepared = model.process_batch_for_training(self.next_batch())
        prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
        info = model.train_on_batch(prepared, epoch=1, validate=False)
        model.on_gradient_step()
        return model.log_info(info)

    def parallel(self) -> list[DistributedDataParallel]:
        """The DDP objects of the nets that learn."""
        from robomimic_ddp import wrap

        nets = [one for one in self.model.nets.modules() if wrap.is_parallel(one)]
        found = [wrap.state_of(net).parallel for net in nets]
        return [one for one in found if isinstance(one, DistributedDataParallel)]

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What stays in memory between steps, by kind."""
        ema = self.model.ema
        averaged = list(self.model.ema_nets.parameters()) if self.model.ema_nets else []
        averaged += getattr(ema, "shadow_params", [])
        return kept(self.model.nets, self.model.optimizers["policy"], averaged, self.parallel())


def without_reduction(loop: Any, undo: ExitStack) -> None:
    """Until `undo` is closed the loop's gradients stay on the rank."""
    for one in loop.parallel():
        undo.enter_context(one.no_sync())


def finish(loop: Any) -> None:
    """Returns once the loop's device has done all that it was given."""
    if torch.device(loop.model.device).type == "cuda":
        torch.cuda.synchronize()
