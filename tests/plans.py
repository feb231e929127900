"""Runs as `session.start` plans them, without a process group, data or nets."""

from __future__ import annotations

from typing import Any

from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.options import resolve
from robomimic_ddp.config.planning.plan import make_plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.training.run import Run


def planned_run(
    config: Any = None,
    ranks: int = 1,
    rank: int = 0,
    on_node: int | None = None,
    gpus: int = 0,
    batch_size: int = 4,
    configured_workers: int | None = None,
    **asked: Any,
) -> Run:
    """Return a run of the host's `config` with the options `asked`, as `rank` of `ranks`, of which
    each node has `on_node` (None: all), and `gpus` visible GPUs.
    """
    here = on_node or ranks
    launch = LaunchEnv(True, rank, ranks, rank % here, here)
    resolved = resolve(asked)
    plan = make_plan(
        launch,
        resolved,
        visible_gpus=gpus,
        use_cuda=gpus > 0,
        batch_size=batch_size,
        workers=configured_workers,
    )
    return Run(Settings.of(resolved, plan, seed=7), config)
