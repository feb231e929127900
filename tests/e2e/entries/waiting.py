"""A rank that prints its process id and waits. Run under torchrun.

With the argument "early" it prints before its entry point begins, as during a host's imports.
"""

from __future__ import annotations

import os
import sys
import time

from robomimic_ddp.distributed import entry_point


def tell() -> None:
    os.write(1, f"{os.getpid()}\n".encode())  # past the quiet stdout of other ranks


@entry_point.entry_point
def main() -> None:
    with entry_point.if_launcher_dies(lambda: os.write(1, b"last words\n")):
        if "early" not in sys.argv:
            tell()
        time.sleep(600)


if __name__ == "__main__":
    if "early" in sys.argv:
        tell()
        time.sleep(3)
    main()
