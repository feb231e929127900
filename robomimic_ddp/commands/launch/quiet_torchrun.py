"""`python -m robomimic_ddp.commands.launch.quiet_torchrun`: torchrun, without the traceback that it
would print below the command that resumes, where its ranks have stopped on request.
"""

from __future__ import annotations

import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from robomimic_ddp.errors import EXIT_DONE, EXIT_STOPPED


def main() -> int:
    """Takes torchrun's command line. Returns 75 if the ranks have stopped on a signal to them, and
    128 + its number after a signal to torchrun, which does not say how its ranks have ended.
    """
    try:
        torchrun()
    except SignalException as heard:
        name, code = signal.Signals(heard.sigval).name, 128 + heard.sigval
        said = f"the ranks have ended after {name}; if they saved a state, how to resume is above"
    except ChildFailedError as failed:
        if any(rank.exitcode != EXIT_STOPPED for rank in failed.failures.values()):
            raise
        said, code = "the ranks have stopped on request; how to resume is above", EXIT_STOPPED
    else:
        return EXIT_DONE
    print(f"launch: {said}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
