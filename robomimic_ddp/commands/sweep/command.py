"""The command line of `robomimic-ddp sweep`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import arguments, devices, torchrun
from robomimic_ddp.config import env, paths
from robomimic_ddp.errors import EXIT_DONE, EXIT_STOPPED, PatchError, UsageError
from robomimic_ddp.terminal import Parser, say

_DIRECTORY = {"metavar": "DIR", "help": "folder of the sweep"}


class _Intermixed(Parser):
    """Takes words between and after flags: `new DIR --config cfg.json train.seed=1,2`."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp sweep`."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Intermixed
    )

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=summary, description=f"{summary}.")
        added.add_argument("directory", **_DIRECTORY)
        return added

    made = action("new", "make a sweep of a config over values")
    made.add_argument("--config", required=True, metavar="FILE", help="the host's JSON config")
    made.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=A,B,...",
        help="values of a key; with random and tpe also KEY=log(LOW,HIGH), uniform(..), int(..)",
    )
    made.add_argument("--sampler", choices=("grid", "random", "tpe"), default="grid")
    made.add_argument("--trials", type=int, metavar="N", help="of random and tpe")
    given = action("import", "make a sweep of configs that are there")
    given.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON configs, or a ConfigGenerator's shell script"
    )
    for one in (made, given):
        one.add_argument(
            "--metric",
            help="what trials are compared by, at its best epoch: rollout/Success_Rate, "
            "rollout/Return, valid/Loss or train/Loss; default: the first that all trials have",
        )
        one.add_argument("--prune", choices=("asha",), help="end trials that fall behind")
    run = action("run", "train what is left; any number of workers at once")
    run.add_argument("--gpus", metavar="N|I,J,...", help="how many GPUs, or which; default: all")
    run.add_argument("--ranks-per-trial", type=int, default=1, metavar="N", help="default 1")
    run.add_argument(
        "--slots", type=int, metavar="N", help="trials at a time; default: one for each GPU, or 1"
    )
    run.add_argument("--retry-failed", action="store_true", help="failed trials are tried again")
    array = action("slurm", "write the sbatch file of an array of workers")
    array.add_argument("--array", type=int, required=True, metavar="N", help="number of workers")
    array.add_argument("--ranks-per-trial", type=int, default=1, metavar="N", help="default 1")
    array.add_argument("-o", "--output", type=paths.writable, metavar="FILE")
    action("show", "print the table of results, best first")
    picture = action("plot", "draw the metric of all trials")
    picture.add_argument("-o", "--output", default="sweep.png", help="default sweep.png")


def run(command: str, args: argparse.Namespace) -> int:
    """Does what is asked for; the exit code, of `run` 1 after a failed trial, 75 if stopped."""
    for name in ("slots", "ranks_per_trial", "array", "trials"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected 1 or more.")
    from robomimic_ddp.commands.sweep import report, study

    directory = paths.expanded(args.directory).absolute()
    if args.action in ("new", "import"):
        return _make(args, directory)
    sweep = study.Sweep(directory)
    if args.action == "run":
        return _run(args, sweep)
    if args.action == "show":
        for line in report.lines(sweep):
            say(line)
    elif args.action == "plot":
        report.draw(sweep, args.output)
        print(f"sweep drawn to {args.output}")
    else:
        _write_slurm(args, directory)
    return EXIT_DONE


def _make(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import space, study

    chosen = {"metric": args.metric, "prune": args.prune is not None}
    if args.action == "import":
        count = study.import_files(directory, args.files, **chosen)
    else:
        searched = space.parse(args.settings)
        ways = {"sampler": args.sampler, "trials": args.trials}
        count = study.new(directory, paths.expanded(args.config), searched, **ways, **chosen)
    made = study.Sweep(directory)
    trials = "1 trial" if count == 1 else f"{count} trials"
    say(f"{trials}, compared by {made.metric} (the best epoch). Train with:")
    print(f"  robomimic-ddp sweep run {args.directory}")
    return EXIT_DONE


def _run(args: argparse.Namespace, sweep: Any) -> int:
    from robomimic_ddp.commands.sweep import worker

    why_not = torchrun.unpatched(arguments.Settings(config=""))
    if why_not:
        raise PatchError(why_not)
    variables = env.variables()
    absent = devices.absent(variables)
    if absent:
        raise UsageError(absent)
    asked = None if args.gpus is None else arguments.gpus(args.gpus, "--gpus")
    chosen = devices.choose(asked, variables)
    if asked is not None and not chosen.gpus:
        raise UsageError(f"--gpus {args.gpus}: no GPU is visible here. On the CPU give --slots N.")
    names = devices.visible_devices(variables)[: chosen.ranks]
    if chosen.visible is not None:
        names = chosen.visible.split(",")
    if names and len(names) < args.ranks_per_trial:
        raise UsageError(
            f"--ranks-per-trial {args.ranks_per_trial}: a trial needs as many GPUs, and there are "
            f"{len(names)}."
        )
    slots = worker.make_slots(names, args.ranks_per_trial, args.slots)
    sweep.require_data()
    code = worker.Worker(sweep, slots, args.ranks_per_trial).run(args.retry_failed)
    if code == EXIT_STOPPED:
        print(f"Resume with:\n  robomimic-ddp {shlex.join(sys.argv[1:])}")
    return code


def _write_slurm(args: argparse.Namespace, directory: Path) -> None:
    from robomimic_ddp.commands.sweep import slurm
    from robomimic_ddp.distributed import atomic_files

    text = slurm.file(directory, args.array, args.ranks_per_trial)
    if args.output is None:
        print(text, end="")
        return
    with atomic_files.must_be_written(args.output), atomic_files.atomic_open(args.output) as file:
        file.write(text)
    print(f"sbatch {args.output}")
