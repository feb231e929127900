"""Two ranks form two process groups, as a host does that trains with two seeds. Run under torchrun.

Rank 1 is late to the second group, when the launcher's store has its address in the first one.
"""

from __future__ import annotations

import time

from robomimic_ddp.distributed import entry_point, group


@entry_point.entry_point
def main() -> None:
    for name in ("first", "second"):
        with group.process_group("gloo", 60):
            rank = group.rank()
            if group.gather_objects(rank) == [0, 1] and rank == 0:
                print(f"the {name} group has two ranks")
        time.sleep(rank)


if __name__ == "__main__":
    main()
