"""The host's own entry on ranks of the pool: what a launcher starts, without starting it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from unittest import mock

from tests.parity.training import use_host

LAUNCHER = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


def train_on_rank(
    host: str, module: str, launched: bool, plan: str, folder: str, *arguments: str
) -> tuple[int, str]:
    """Collective: the exit code of `python -m module plan folder arguments`, and what it printed.

    `module`: tests.e2e.killed_train or killed_rlds. `launched` is False for plain python, in a call
    with `process_group=False`.
    """
    use_host(host)
    if not launched:
        for name in LAUNCHER:
            del os.environ[name]
    import robomimic.scripts.train as host_train

    from robomimic_ddp.checkpoint import weights
    from robomimic_ddp.distributed import entry_point

    program, printed = importlib.import_module(module), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(entry_point, "_end", sys.exit))  # the worker lives on
        stack.enter_context(mock.patch.object(entry_point, "_show", printed.write))
        for owner, name in ((host_train, "algo_factory"), (weights, "save")):
            stack.enter_context(mock.patch.object(owner, name, getattr(owner, name)))
        stack.enter_context(mock.patch.object(sys, "argv", ["-", plan, folder, *arguments]))
        stack.enter_context(contextlib.redirect_stdout(printed))
        try:
            program.main()
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()
