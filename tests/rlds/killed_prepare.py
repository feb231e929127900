"""`python -m tests.rlds.killed_prepare RECORD prepare-data ...`: the command, whose process group
gets SIGKILL once this many records are written.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from robomimic_ddp import cli
from robomimic_ddp.commands.prepare_data import writing


def main() -> int:
    last, *words = sys.argv[1:]
    assert os.getpgrp() == os.getpid(), "else this would end the tests"
    rewritten, written = writing._rewritten, []

    def kill_at_last(*arguments: Any) -> bytes:
        written.append(rewritten(*arguments))
        if len(written) > int(last):
            os.killpg(0, signal.SIGKILL)
        return written[-1]

    writing._rewritten = kill_at_last
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
