"""A rank that prints its process id and waits. Run under torchrun."""

from __future__ import annotations

import os
import time

from robomimic_ddp import entry


@entry.entry_point
def main() -> None:
    os.write(1, f"{os.getpid()}\n".encode())  # past the quiet stdout of other ranks
    time.sleep(600)


if __name__ == "__main__":
    main()
