"""Averages gradients over ranks in place, by one message for each type of tensor.

For few parameters this is faster than DDP, whose hooks, buckets and search for unused parameters
then cost more than the message.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from robomimic_ddp.distributed import group

_TIMED_FIRST, _TIMED_EVERY = 10, 100
"""Messages that are timed, as many as DDP times."""


class FlatMean:
    """Averages the gradients of `parameters`."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        kinds: dict[Any, list[torch.Tensor]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self._by_kind = list(kinds.values())
        self._sent = 0
        self._times: tuple[Any, Any] | None = None
        """Before and after the latest message that was timed: seconds, or events of a GPU."""

    @torch.no_grad()
    def average(self) -> None:
        """Collective: every gradient becomes the mean over ranks, where an absent one counts as
        zero. A gradient that no rank has stays absent, as in one process.
        """
        for parameters in self._by_kind:
            self._average(parameters)
        self._sent += 1

    def _average(self, parameters: list[torch.Tensor]) -> None:
        gradients = [p.grad for p in parameters]
        is_present = [gradient is not None for gradient in gradients]
        if all(is_present):
            flags = parameters[0].new_ones(len(parameters))
        else:
            flags = parameters[0].new_tensor(is_present)
            gradients = [
                torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters
            ]
        message = torch.cat([flags, *(gradient.flatten() for gradient in gradients)])
        message.mul_(1 / group.world_size())
        self._send(message)
        flags, *means = message.split([len(flags), *(p.numel() for p in parameters)])
        # What this rank has, some rank has: only otherwise is a GPU waited for.
        is_anywhere = is_present if all(is_present) else (flags > 0).tolist()
        for parameter, mean, is_trained in zip(parameters, means, is_anywhere):
            if is_trained:
                mean = mean.view_as(parameter)
                # Fused kernels go through memory, also of a net in channels-last order.
                if mean.stride() != parameter.stride():
                    mean = torch.empty_like(parameter).copy_(mean)
                # By `data` each has its own version, which a later pass into another leaves alone.
                parameter.grad = mean.data

    def _send(self, message: torch.Tensor) -> None:
        """Collective: adds up `message` over ranks, in place."""
        if self._sent >= _TIMED_FIRST and self._sent % _TIMED_EVERY:
            group.add_over_ranks(message)
            return
        begin = _now(message.device)
        group.add_over_ranks(message)
        self._times = begin, _now(message.device)

    @property
    def seconds(self) -> float | None:
        """Seconds of the latest message that was timed; None before the first. Waits for a GPU."""
        if self._times is None:
            return None
        begin, end = self._times
        if isinstance(begin, float):
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
