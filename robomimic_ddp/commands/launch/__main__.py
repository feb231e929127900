"""`python -m robomimic_ddp.commands.launch`, for scripts/train_multi_gpu.sh."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from robomimic_ddp.commands.launch import arguments
from robomimic_ddp.config import env
from robomimic_ddp.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_USAGE,
    PatchError,
    RobomimicDDPError,
    UsageError,
)
from robomimic_ddp.terminal import say

_NEEDED = ("torch", "omegaconf")


def main(argv: Sequence[str] | None = None, prog: str = arguments.SCRIPT) -> int:
    """Prints the command, then becomes torchrun, unless --dry-run is set. prog: the command that
    was typed.
    """
    name = prog.partition(".sh")[0]
    variables = env.variables()
    try:
        settings = arguments.parse(sys.argv[1:] if argv is None else argv, variables, prog)
        _require_packages()
        from robomimic_ddp.commands.launch import summary, torchrun

        if settings.print_runs:
            print(summary.runs_folder(settings))
            return EXIT_DONE
        wrong = list(_wrong(settings, variables))
        if wrong and not settings.dry_run:
            raise wrong[0]
        command, added = torchrun.command(settings, variables)
        for line in summary.lines(settings, variables):
            say(line)
    except RobomimicDDPError as error:
        say(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_REFUSED
    set_here = {**_import_path(variables), **added}
    shown = [f"{name}={shlex.quote(value)}" for name, value in set_here.items()]
    print("command:", " ".join([*shown, shlex.join(command)]), flush=True)
    for error in wrong:
        say(f"{name}: note: {error}", file=sys.stderr)
    if not settings.dry_run:
        env.become(torchrun.quiet(command), added)
    return EXIT_DONE


def _wrong(
    settings: arguments.Settings, variables: Mapping[str, str]
) -> Iterator[RobomimicDDPError]:
    """What would stop all ranks, or should."""
    from robomimic_ddp.commands.launch import checks, devices, torchrun

    unpatched = torchrun.unpatched(settings)
    if unpatched:
        yield PatchError(unpatched)
    absent = devices.absent(variables)
    if absent:
        yield UsageError(absent)
    refused = None if unpatched else checks.refusal(settings)
    if refused is not None:
        yield refused


def _import_path(variables: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH, if it has this checkout, so that the printed command works in another shell."""
    checkout = os.path.realpath(Path(__file__).parents[3])
    path = variables.get("PYTHONPATH", "")
    named = [os.path.realpath(folder) for folder in path.split(os.pathsep) if folder]
    return {"PYTHONPATH": path} if checkout in named else {}


def _require_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{sys.executable} has no {' and no '.join(missing)}: it is not the Python that "
            "trains. Activate that environment, or name it: PYTHON=/path/to/python."
        )


if __name__ == "__main__":
    sys.exit(main())
