"""`python -m robomimic_ddp` is the command `robomimic-ddp`."""

from __future__ import annotations

import sys

from robomimic_ddp.cli import main

if __name__ == "__main__":
    sys.exit(main())
