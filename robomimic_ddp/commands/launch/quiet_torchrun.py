"""`python -m robomimic_ddp.commands.launch.quiet_torchrun`: torchrun without its own traceback. The
last thing printed is the command that resumes, if the ranks have printed one.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from robomimic_ddp.commands.launch.evaluation import Evaluation
from robomimic_ddp.config import env
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED
from robomimic_ddp.terminal import print_clean


def main() -> int:
    """Run torchrun's command line. Returns 75 if the ranks have stopped on request, 1 if a rank has
    failed, and 128 + its number after a signal to torchrun, which does not tell how its ranks have
    ended.
    """
    with env.resume_note() as note:
        evaluation, is_complete = Evaluation(note, env.evaluation()), False
        try:
            torchrun()
            is_complete = True
        except SignalException as interrupt:
            outcome = f"the ranks have ended after {signal.Signals(interrupt.sigval).name}"
            code = 128 + interrupt.sigval
        except ChildFailedError as failure:
            outcome, code = "the ranks have stopped on request", EXIT_STOPPED
            codes = {rank.exitcode for rank in failure.failures.values()}
            # torchrun sends SIGTERM to ranks that end a moment later.
            if EXIT_STOPPED not in codes or codes - {EXIT_STOPPED, -signal.SIGTERM}:
                print_clean(failure, file=sys.stderr)
                outcome, code = "a rank has failed, see the root cause above", EXIT_REFUSED
        else:
            return EXIT_DONE
        finally:
            evaluation.end(is_complete)
        advice = f"; {note.read_text(encoding='utf-8')}" if note.exists() else ""
        with suppress(OSError):  # a closed terminal: scripts read the code
            print_clean(f"launch: {outcome}{advice}", file=sys.stderr)
        return code


if __name__ == "__main__":
    sys.exit(main())
