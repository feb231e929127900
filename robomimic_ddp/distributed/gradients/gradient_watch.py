"""Notices gradients that a host changes between its backward pass and their mean over ranks.

torch counts the writes to a tensor, but not those through `p.grad.data`, by which hosts clip by
hand. Their norms tell, where the latest pass computed others: one fused operation at the end of
each pass, and one before the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd import Variable

_ROUNDING, _ROUNDING_OF_16_BITS = 1e-3, 2e-2
"""Relative differences of two norms of the same gradient."""


class GradientWatch:
    """Watches the gradients of `parameters`; calls `on_write` whenever a backward pass writes one.

    Rank-local. Does not wait for a GPU: what its norms say is known in the step that follows.
    """

    def __init__(self, parameters: list[torch.Tensor], on_write: Callable[[], None]) -> None:
        self._parameters, self._on_write = parameters, on_write
        self._versions: dict[int, int] = {}
        """Parameter -> the version of its gradient after the host's own backward pass."""
        self._norms: dict[int, torch.Tensor] = {}
        """Parameter -> the norm of its gradient then."""
        self._pass = -1
        """torch's number of the backward pass at whose end norms are taken."""
        self._late: tuple[torch.Tensor, Any] | None = None
        """GPU: by how much norms of the step before differ beyond rounding; the event after which
        that is known.
        """
        self._hooks = ExitStack()
        for parameter in parameters:
            self._watch(parameter)

    def close(self) -> None:
        """Watches no more."""
        self._hooks.close()

    def _watch(self, parameter: torch.Tensor) -> None:
        def note(*_: Any) -> None:
            self._on_write()
            if parameter.grad is None:  # a pass may bring nothing here
                return
            self._versions[id(parameter)] = parameter.grad._version
            number = torch._C._current_graph_task_id()
            if number != self._pass:
                self._pass = number
                Variable._execution_engine.queue_callback(self._take_norms)

        # By the graph's node that writes it, as DDP does: torch 2.0 has no such hook of a tensor.
        # The hook is lost with the node, which only this keeps.
        writer = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        handle = writer.register_hook(note)
        self._hooks.callback(lambda node: handle.remove(), writer)

    def _take_norms(self) -> None:
        present = [p for p in self._parameters if p.grad is not None]
        self._norms = dict(zip(map(id, present), _norms(present)))

    def are_changed(self) -> bool:
        """Return whether something else has written a gradient since the pass that computed it, or
        did so in the step before.
        """
        written = [p for p in self._parameters if p.grad is not None]
        if any(p.grad._version != self._versions.get(id(p)) for p in written):
            return True
        was_changed = self._was_changed()
        present = [p for p in written if id(p) in self._norms]
        return was_changed or (bool(present) and self._differ(present))

    def _differ(self, present: list[torch.Tensor]) -> bool:
        """Return whether norms have changed since the latest pass; of a GPU, for the next step."""
        after, before = _norms(present), [self._norms[id(p)] for p in present]
        kinds = {norm.dtype for norm in after}
        rounding = _ROUNDING if kinds <= {torch.float32, torch.float64} else _ROUNDING_OF_16_BITS
        device = after[0].device
        new, old = (
            torch.stack([norm.to(device, torch.float64) for norm in norms])
            for norms in (after, before)
        )
        excess = ((new - old).abs() - rounding * old).max()  # NaN where a norm is not finite
        if device.type != "cuda":
            return float(excess) > 0
        on_host = torch.empty((), dtype=excess.dtype, pin_memory=True)
        on_host.copy_(excess, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._late = on_host, event
        return False

    def _was_changed(self) -> bool:
        """Return what the GPU has computed about the step before, once."""
        if self._late is None:
            return False
        (excess, event), self._late = self._late, None
        if not event.query():
            event.synchronize()
        return float(excess) > 0


def _norms(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    if not parameters:  # torch refuses an empty list
        return []
    with torch.no_grad():
        return list(torch._foreach_norm([p.grad.detach() for p in parameters]))
