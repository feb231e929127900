"""`quiet_torchrun` that soon finds itself stuck: its last argument says on what.

lost: torchrun starts its ranks, and then waits, in torch, for a node that is lost.
none: on nothing; as a container's first process, this one gets the orphans of its ranks.
"""

from __future__ import annotations

import ctypes
import sys
import time

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from robomimic_ddp.commands.launch import quiet_torchrun

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> int:
    if sys.argv[-1] == "lost":
        LocalElasticAgent._monitor_workers = lambda *_: time.sleep(100)
    else:
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    quiet_torchrun._LOOK_SECONDS, quiet_torchrun._STUCK_SECONDS = 0.1, 3.0
    return quiet_torchrun.main()


if __name__ == "__main__":
    sys.exit(main())
