"""`python -m robomimic_ddp.commands.launch.quiet_torchrun`: torchrun without its own traceback. The
last thing printed is the command that resumes, if the ranks have printed one.
"""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import main as torchrun

from robomimic_ddp.commands.launch.evaluation import Evaluation
from robomimic_ddp.config import env
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED
from robomimic_ddp.terminal import print_clean

_STORE_ERROR = getattr(dist, "DistError", RuntimeError)
"""Where the first node is lost after all have met; torch 2.0 has no type for it."""


def main() -> int:
    """Run torchrun's command line. Returns 75 if the ranks have stopped on request, 1 if a rank has
    failed or the nodes cannot meet, and 128 + its number after a signal to torchrun, which does not
    tell how its ranks have ended.
    """
    with env.resume_note() as note:
        evaluation, is_complete = Evaluation(note, env.evaluation()), False
        try:
            torchrun()
            is_complete = True
            return EXIT_DONE
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
        except (RendezvousError, _STORE_ERROR, socket.gaierror) as error:
            outcome, code = _not_met(error), EXIT_REFUSED
        finally:
            evaluation.end(is_complete)
        advice = f"; {note.read_text(encoding='utf-8')}" if note.exists() else ""
        with suppress(OSError):  # a closed terminal: scripts read the code
            print_clean(f"launch: {outcome}{advice}", file=sys.stderr)
        return code


def _not_met(error: Exception) -> str:
    flag = "--rdzv_endpoint="
    places = (word.removeprefix(flag) for word in sys.argv if word.startswith(flag))
    cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    return (
        f"the nodes cannot meet at {next(places, 'this machine')}, or the launcher there has "
        f"ended: {cause[0].rstrip('.')}, on {env.host_name()}. See the errors of the other nodes. "
        "Expected the same command on as many nodes as --nodes says, within 10 minutes; node "
        "names (`hostname`) that resolve on all of them; clocks that differ by less than 15 "
        "seconds; and in --rdzv one of these nodes, with a port that is free and that no firewall "
        "blocks"
    )


if __name__ == "__main__":
    sys.exit(main())
