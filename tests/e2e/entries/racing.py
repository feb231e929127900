"""Two ranks: one fails while the other waits for it in a collective. Run under torchrun.

Arguments: what happens ("fails", "all fail", "connection" or "exits") and on which rank; and after
how many seconds on rank 1.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from robomimic_ddp.distributed import entry_point, group


@entry_point.entry_point
def main() -> None:
    what, (failing, *late) = sys.argv[1], map(float, sys.argv[2:])
    with group.process_group("gloo", 60):
        group.gather_objects(None)  # connected
        time.sleep(sum(late) * group.rank())
        if what == "all fail" or group.rank() == failing:
            if what == "connection":
                raise ConnectionResetError("wandb upload: Connection reset by peer")
            if what == "exits":
                sys.exit("this rank leaves")
            raise ValueError("planted on purpose")
        dist.all_reduce(torch.ones(1000))


if __name__ == "__main__":
    main()
