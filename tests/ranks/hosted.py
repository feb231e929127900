"""The host's own entry on ranks of the pool: what a launcher starts, without starting it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.hosts import FINISHED, Host
from tests.parity.training import use_host
from tests.ranks.pool import RankError, RankPool

LAUNCHER = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


def train_on_rank(
    host: str, module: str, launched: bool, plan: str, folder: str, *arguments: str
) -> tuple[int, str]:
    """Collective: the exit code of `python -m module plan folder arguments`, and what it printed.

    `module`: tests.e2e.entries.killed_train or killed_rlds. `launched` is False for plain python,
    in a call with `process_group=False`.
    """
    use_host(host)
    if not launched:
        for name in LAUNCHER:
            del os.environ[name]
    import robomimic.scripts.train as host_train

    from robomimic_ddp.checkpoint import torch_save
    from robomimic_ddp.distributed import entry_point

    program, printed = importlib.import_module(module), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(entry_point, "_end", sys.exit))  # the worker lives on
        stack.enter_context(mock.patch.object(entry_point, "_show", printed.write))
        for owner, name in ((host_train, "algo_factory"), (torch_save, "save")):
            stack.enter_context(mock.patch.object(owner, name, getattr(owner, name)))
        stack.enter_context(mock.patch.object(sys, "argv", ["-", plan, folder, *arguments]))
        stack.enter_context(contextlib.redirect_stdout(printed))
        try:
            program.main()
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def job(
    pool: RankPool,
    host: Host,
    folder: Path,
    config: Path,
    plan: str,
    *more: str,
    ranks: int = 2,
    launched: bool = True,
    added: dict[str, str] | None = None,
    train: Callable[..., tuple[int, str]] = train_on_rank,
) -> tuple[int, str]:
    """Run the host on ranks of the pool; return the exit code of all, and what they printed."""
    call = (
        str(host.folder),
        "tests.e2e.entries.killed_train",
        launched,
        plan,
        str(folder / "happened"),
    )
    done = pool.run(
        train,
        *(*call, "--config", str(config), *more),
        world_size=ranks,
        process_group=launched,
        environment=added,
        timeout=200,
    )
    (code,) = {code for code, _ in done}
    return code, "".join(text for _, text in done)


def require_finished(done: tuple[int, str]) -> str:
    code, text = done
    assert code == 0 and text.count(FINISHED) == 1, text
    return text


def killed(pool: RankPool, *call: Any, **options: Any) -> None:
    """Run a job whose plan kills its ranks."""
    with pytest.raises(RankError, match="died with exit code -9"):
        job(pool, *call, **options)
