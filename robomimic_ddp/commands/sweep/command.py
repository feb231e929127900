"""The command line of `robomimic-ddp sweep`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import checks, devices
from robomimic_ddp.config import env, paths
from robomimic_ddp.errors import EXIT_DONE, EXIT_STOPPED, DataError, UsageError
from robomimic_ddp.terminal import Parser, print_clean, say


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

    new = add_action("new", "make a sweep of a config over values")
    new.add_argument("--config", required=True, metavar="FILE", help="the host's JSON config")
    new.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=A,B,...",
        help="values of a key; with random and tpe also KEY=log(LOW,HIGH), uniform(..), int(..)",
    )
    new.add_argument("--sampler", choices=("grid", "random", "tpe"), default="grid")
    new.add_argument("--trials", type=int, metavar="N", help="of random and tpe")
    new.add_argument(
        "--metric",
        choices=("rollout/Success_Rate", "rollout/Return", "valid/Loss", "train/Loss"),
        help="what trials are compared by, at its best epoch; default: the first that all have",
    )
    run = add_action("run", "train what is left, one trial on each GPU; any number of workers")
    run.add_argument("--ranks", type=int, default=1, metavar="N", help="of a trial; default 1")
    add_action("show", "print the results, best first, and the run folders")


def run(command: str, args: argparse.Namespace) -> int:
    """Run the action and return the exit code; of `run` 1 after a failed trial, 75 if stopped."""
    for name in ("ranks", "trials"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: expected 1 or more.")
    directory = paths.expanded(args.directory).absolute()
    try:
        return _ACTIONS[args.action](args, directory)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(
            f"{directory}: the sweep cannot be written ({error}). Trainings that run are not "
            "affected. Free disk space, or correct the permissions, and run the command again: it "
            "continues where this one ended."
        ) from error


def _new(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import new, space, study

    searched = space.parse(args.settings)
    count = new.make(directory, args.config, searched, args.sampler, args.trials, args.metric)
    trials = "1 trial" if count == 1 else f"{count} trials"
    say(f"{trials}, compared by {study.Sweep(directory).metric} (the best epoch). Train with:")
    print_clean(f"  robomimic-ddp sweep run {args.directory}")
    return EXIT_DONE


def _show(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import show, study

    for line in show.lines(study.Sweep(directory)):
        say(line)
    return EXIT_DONE


def _train(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import study, worker

    sweep = study.Sweep(directory)
    checks.require_patched()
    code = worker.Worker(sweep, _gpus(args.ranks), args.ranks).run()
    if code == EXIT_STOPPED:
        print_clean(f"Resume with:\n  robomimic-ddp {shlex.join(sys.argv[1:])}")
    return code


_ACTIONS = {"new": _new, "run": _train, "show": _show}


def _gpus(ranks: int) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES of each trial that trains at a time, with `ranks` of the
    visible GPUs; without GPUs one trial, on the CPU. Raises UsageError if a trial needs more.
    """
    gpus = devices.visible_devices(env.variables())
    if gpus and len(gpus) < ranks:
        raise UsageError(
            f"--ranks {ranks}: a trial needs as many GPUs, and {len(gpus)} are visible."
        )
    starts = range(0, len(gpus) - ranks + 1, ranks)
    return [",".join(gpus[start : start + ranks]) for start in starts] or [""]
