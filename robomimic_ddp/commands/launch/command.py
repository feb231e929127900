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
from robomimic_ddp.config import env
from robomimic_ddp.errors import EXIT_DONE, UsageError
from robomimic_ddp.terminal import print_clean, say

_NEEDED = ("torch", "omegaconf")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `launch`."""
    arguments.add_to(parser)


def run(command: str, args: argparse.Namespace) -> int:
    """Print the torchrun command, then become it, unless --dry-run is set."""
    variables = env.variables()
    settings = arguments.settings_of(args, variables)
    _require_packages()
    from robomimic_ddp.commands.launch import checks, torchrun

    problems = checks.problems(settings, variables)
    if problems and not settings.dry_run:
        raise problems[0]
    chosen = devices.choose(settings.gpus, variables)
    words, added = torchrun.command(settings, variables)
    folder = checks.runs_folder(settings)
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    why = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
    hint = "; --gpus N starts N ranks" if settings.gpus is None else ""
    where = "on GPUs" if chosen.gpus else f"on the CPU, since no GPU is visible{why}{hint}"
    world = chosen.ranks * settings.nodes
    say(f"ranks: {chosen.ranks} on each of {settings.nodes} node(s) = {world}, {where}")
    if folder:
        say(f"runs: {folder}")
    shown = {**_import_path(variables), **added}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
    print_clean(" ".join(["command:", *assignments, shlex.join(words)]))
    for problem in problems:
        say(f"robomimic-ddp: note: {problem}", file=sys.stderr)
    if not settings.dry_run:
        env.become(torchrun.quiet(words), added)
    return EXIT_DONE


def _import_path(variables: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH if it has this checkout: the printed command then works in any shell."""
    checkout = os.path.realpath(Path(__file__).parents[3])
    path = variables.get("PYTHONPATH", "")
    folders = [os.path.realpath(folder) for folder in path.split(os.pathsep) if folder]
    return {"PYTHONPATH": path} if checkout in folders else {}


def _require_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{sys.executable} has no {' and no '.join(missing)}: it is not the Python that "
            "trains. Activate that environment, or name it: PYTHON=/path/to/python."
        )
