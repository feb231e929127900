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
    """Declare the arguments of `robomimic-ddp sweep`."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Intermixed
    )

    def add_action(name: str, summary: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        action.add_argument("directory", metavar="DIR", help="folder of the sweep")
        return action

    making = add_action("new", "make a sweep of a config over values")
    making.add_argument("--config", required=True, metavar="FILE", help="the host's JSON config")
    making.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=A,B,...",
        help="values of a key; with random and tpe also KEY=log(LOW,HIGH), uniform(..), int(..)",
    )
    making.add_argument("--sampler", choices=("grid", "random", "tpe"), default="grid")
    making.add_argument("--trials", type=int, metavar="N", help="of random and tpe")
    making.add_argument(
        "--metric",
        choices=("rollout/Success_Rate", "rollout/Return", "valid/Loss", "train/Loss"),
        help="what trials are compared by, at its best epoch; default: the first that all have",
    )
    run = add_action("run", "train what is left, one trial on each GPU; any number of workers")
    run.add_argument("--gpus", metavar="N|I,J,...", help="how many GPUs, or which; default: all")
    run.add_argument("--ranks", type=int, default=1, metavar="N", help="of a trial; default 1")
    run.add_argument("--retry-failed", action="store_true", help="failed trials are tried again")
    add_action("show", "print the results, best first, and the run folders")


def run(command: str, args: argparse.Namespace) -> int:
    """Run the action and return the exit code; of `run` 1 after a failed trial, 75 if stopped."""
    for name in ("ranks", "trials"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: expected 1 or more.")
    from robomimic_ddp.commands.sweep import show, study

    directory = paths.expanded(args.directory).absolute()
    if args.action == "new":
        return _make(args, directory)
    sweep = study.Sweep(directory)
    if args.action == "show":
        for line in show.lines(sweep):
            say(line)
        return EXIT_DONE
    with study.writable(directory):
        return _train(args, sweep)


def _make(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import new, space, study

    count = new.make(
        directory,
        paths.expanded(args.config),
        space.parse(args.settings),
        sampler=args.sampler,
        trials=args.trials,
        metric=args.metric,
    )
    trials = "1 trial" if count == 1 else f"{count} trials"
    say(f"{trials}, compared by {study.Sweep(directory).metric} (the best epoch). Train with:")
    print(f"  robomimic-ddp sweep run {args.directory}")
    return EXIT_DONE


def _train(args: argparse.Namespace, sweep: Any) -> int:
    from robomimic_ddp.commands.sweep import worker

    why_not = torchrun.unpatched(arguments.Settings(config=""))
    if why_not:
        raise PatchError(why_not)
    gpus = worker.share_out(_gpus(args), args.ranks)
    sweep.require_data()
    code = worker.Worker(sweep, gpus, args.ranks).run(args.retry_failed)
    if code == EXIT_STOPPED:
        print(f"Resume with:\n  robomimic-ddp {shlex.join(sys.argv[1:])}")
    return code


def _gpus(args: argparse.Namespace) -> list[str]:
    """Return the names of the GPUs to train on. Raises UsageError if a trial needs more."""
    variables = env.variables()
    absent = devices.absent(variables)
    if absent:
        raise UsageError(absent)
    asked = None if args.gpus is None else arguments.gpus(args.gpus, "--gpus")
    chosen = devices.choose(asked, variables)
    if asked is not None and not chosen.gpus:
        raise UsageError(
            f"--gpus {args.gpus}: no GPU is visible here. On the CPU one trial trains at a time; "
            "leave out --gpus."
        )
    names = devices.visible_devices(variables)[: chosen.ranks]
    if chosen.visible is not None:
        names = chosen.visible.split(",")
    if names and len(names) < args.ranks:
        raise UsageError(
            f"--ranks {args.ranks}: a trial needs as many GPUs, and there are {len(names)}."
        )
    return names
