"""`robomimic-ddp launch`, which scripts/train_multi_gpu.sh and scripts/train_slurm.sbatch run."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp.commands.launch import arguments, devices
from robomimic_ddp.config import env, launch_env
from robomimic_ddp.errors import EXIT_DONE, RobomimicDDPError, UsageError
from robomimic_ddp.terminal import print_clean, say


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `launch`."""
    arguments.add_to(parser)


def run(command: str, args: argparse.Namespace) -> int:
    """Print the torchrun command, then become it, unless --dry-run is set."""
    variables = env.variables()
    settings = arguments.settings_of(args, variables)
    missing = [name for name in ("torch", "omegaconf") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{sys.executable} has no {' and no '.join(missing)}, so it cannot train. Activate the "
            "environment of the host, or name its Python: PYTHON=/path/to/python."
        )
    from robomimic_ddp.commands.launch import checks, torchrun

    problem = None
    try:
        if settings.rdzv:
            checks.require_rendezvous(settings.rdzv, settings.nodes)
        checks.require_requeue_note()
        checks.require_patched(settings.module)
    except RobomimicDDPError as error:
        if not settings.dry_run:
            raise
        problem = error
    job = torchrun.command(settings, variables)
    say(_ranks_line(settings, job.ranks, variables))
    if job.evaluation:
        _, workers, _, gpus = job.evaluation
        where = f"GPU {gpus}" if gpus else "the CPU, at a lower priority than the ranks"
        say(f"evaluation: {workers} worker(s) on {where}, once the run has its folder")
    ignored = launch_env.torchrun_defaults(variables)
    without = ["env", *(f"-u {name}" for name in ignored)] if ignored else []
    shown = {**_import_path(variables), **job.added}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
    print_clean(" ".join(["command:", *without, *assignments, shlex.join(job.words)]))
    if ignored:
        say(
            f"robomimic-ddp: note: torchrun does not get {', '.join(ignored)}: launch has --gpus, "
            "--nodes, --rdzv, --port and --max-restarts for it",
            file=sys.stderr,
        )
    if problem is not None:
        say(f"robomimic-ddp: note: {problem}", file=sys.stderr)
    if not settings.dry_run:
        evaluation = {env.EVALUATE: shlex.join(job.evaluation)} if job.evaluation else {}
        inherited = launch_env.without_rank(variables)
        env.become(job.quiet, {**inherited, **job.added, **evaluation})
    return EXIT_DONE


def _ranks_line(settings: arguments.Settings, ranks: int, variables: Mapping[str, str]) -> str:
    total, devices_text = "", "on GPUs"
    if not devices.visible_devices(variables):
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        cause = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
        hint = "; --gpus N starts N ranks" if settings.gpus is None else ""
        devices_text = f"on the CPU, since no GPU is visible{cause}{hint}"
    if settings.nodes > 1:
        total = f" on each of {settings.nodes} nodes, {ranks * settings.nodes} in all"
    return f"ranks: {ranks}{total}, {devices_text}"


def _import_path(variables: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH if it has this checkout: the printed command then works in any shell."""
    checkout = os.path.realpath(Path(__file__).parents[3])
    path = variables.get("PYTHONPATH", "")
    folders = [os.path.realpath(folder) for folder in path.split(os.pathsep) if folder]
    return {"PYTHONPATH": path} if checkout in folders else {}
