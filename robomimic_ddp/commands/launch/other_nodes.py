"""Ends the ranks of this node some time after another node's launcher has ended.

A torchrun ends the ranks of one node. Those of other nodes notice in their next collective, which a
rank never reaches that hangs elsewhere, such as in a simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousClosedError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from robomimic_ddp.config.monkeypatch import swapped

_PATIENCE_SECONDS = 120.0
"""By then a rank that does not hang has saved, and has noticed."""


@contextmanager
def ending_hung_ranks(left: Path) -> Iterator[None]:
    """For the block, torchrun raises RendezvousClosedError, and ends its ranks, where another
    node's torchrun has ended and they have not; not once they have made the file `left`.
    """
    watched = _watched(DynamicRendezvousHandler.num_nodes_waiting, left)
    with swapped(DynamicRendezvousHandler, "num_nodes_waiting", watched):
        yield


def _watched(ask: Callable[..., int], left: Path) -> Callable[..., int]:
    """Return what torchrun asks several times a second while its ranks run, around `ask`."""
    met: dict[int, int] = {}
    since = time.monotonic()

    def num_nodes_waiting(handler: DynamicRendezvousHandler) -> int:
        nonlocal since
        waiting = ask(handler)
        state = getattr(getattr(handler, "_state_holder", None), "state", None)
        if state is None:  # a torchrun that keeps it elsewhere
            return waiting
        nodes = len(state.participants)
        met[state.round] = max(nodes, met.get(state.round, 0))
        # A node too many closes the rendezvous, too, where its patience ends.
        if not state.closed or nodes == met[state.round] or left.exists():
            since = time.monotonic()
        elif time.monotonic() - since > _PATIENCE_SECONDS:
            raise RendezvousClosedError
        return waiting

    return num_nodes_waiting
