"""Each node of a job of several says that it has joined, and how it has ended.

The main rank logs for all: a node whose log stays silent would look like one that hangs.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from robomimic_ddp.config import env
from robomimic_ddp.config.planning.plan import RunPlan
from robomimic_ddp.distributed import watchdog
from robomimic_ddp.errors import Stopped
from robomimic_ddp.terminal import print_clean


class NodeMessages:
    """Lines on stderr of a node's first rank; none of other ranks, and on a single node.

    `nodes`: how many; `node`: which, from 0, by the launcher or else by the ranks' order.
    """

    def __init__(self, plan: RunPlan, node: int | None = None, nodes: int | None = None) -> None:
        of_node = plan.local_world_size
        self.nodes = nodes or -(-plan.world_size // of_node)
        self.node = plan.rank // of_node if node is None else node
        self._begun, self._left = time.monotonic(), self.nodes > 1 and plan.local_rank == 0
        self._output = ""
        """Where the main rank prints, on other nodes."""
        last = plan.rank + of_node - 1
        on_gpu = plan.device.startswith("cuda")
        self._ranks = f"ranks {plan.rank} to {last}" if of_node > 1 else f"rank {plan.rank}"
        self._devices = f"{plan.visible_gpus} visible GPU(s)" if on_gpu else "on the CPU"

    def joined(self, restart: int = 0) -> None:
        """The node has joined the process group."""
        again = f", restart {restart}" if restart else ""
        self._say(f"joined: {self._ranks}, {self._devices}{again}")
        if self.node > 0:
            self._output = f"; the run's output is that of {watchdog.name(0)}"

    def ended(self, error: BaseException | None) -> None:
        """Says once how the node has ended: by `error`, or well."""
        asked = isinstance(error, (Stopped, KeyboardInterrupt))
        how = "finished" if error is None else "stopped on request" if asked else "failed"
        duration = timedelta(seconds=round(time.monotonic() - self._begun))
        self._say(f"{how} after {duration}{self._output}")
        self._left = False

    def _say(self, what: str) -> None:
        if self._left:
            where = f"node {self.node + 1} of {self.nodes} ({env.host_name()})"
            print_clean(f"robomimic-ddp: {where} {what}", file=sys.__stderr__)
