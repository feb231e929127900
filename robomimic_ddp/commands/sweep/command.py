"""The command line of `robomimic-ddp sweep`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robomimic_ddp.commands.launch import checks, devices
from robomimic_ddp.commands.sweep import METRICS, kind
from robomimic_ddp.config import env, paths
from robomimic_ddp.distributed import quiet_streams
from robomimic_ddp.errors import (
    EXIT_DONE,
    EXIT_STOPPED,
    DataError,
    RobomimicDDPError,
    UsageError,
)
from robomimic_ddp.terminal import print_clean, say, whole_number

if TYPE_CHECKING:
    from robomimic_ddp.commands.sweep.study import Sweep

_BATCH_KEYS = ("train.batch_size", "ddp.batch", "ddp.accumulate")


class _Intermixed(argparse.ArgumentParser):
    """Accepts values after flags as well: `new DIR --config cfg.json train.seed=1,2`."""

    _is_nested = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_nested:
            return super().parse_known_args(args, namespace)
        self._is_nested = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_nested = False


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp sweep`."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Intermixed
    )

    def add_action(name: str, act: Callable, summary: str) -> Callable[..., argparse.Action]:
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        action.set_defaults(act=act)
        action.add_argument("directory", metavar="DIR", help="folder of the sweep")
        return action.add_argument

    add = add_action("new", _new, "create a sweep over values of config keys")
    add("--config", required=True, metavar="FILE", help="the host's JSON config")
    what = "values of a key; with random and tpe also KEY=log(LOW,HIGH), uniform(..), int(..)"
    add("settings", nargs="*", metavar="KEY=A,B,...", help=what)
    what = "which combinations of values to try; default %(default)s, which tries all"
    add("--sampler", choices=("grid", "random", "tpe"), default="grid", help=what)
    what = "number of trials, for random and tpe"
    add("--trials", type=whole_number(1), metavar="N", help=what)
    what = (
        f"{', '.join(METRICS)}, or another loss such as valid/actor/loss: how trials are compared; "
        "default: the first that all of them log"
    )
    add("--metric", type=_metric, metavar="NAME", help=what)
    what = "train the remaining trials, one per GPU; may be started several times at once"
    add = add_action("run", _train, what)
    what = "ranks of each trial; default %(default)s"
    add("--ranks", type=whole_number(1), default=1, metavar="N", help=what)
    add_action("show", _show, "print the results, best first, and the run directories")


def run(command: str, args: argparse.Namespace) -> int:
    """Run the action and return its exit code: for `run`, 1 after a failed trial, 75 if stopped."""
    directory = paths.expanded(args.directory).absolute()
    try:
        return args.act(args, directory)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(
            f"{directory}: the sweep cannot be read or written ({error}). Running trials are not "
            "affected. Free disk space, or correct the permissions, and run the command again: it "
            "continues from here."
        ) from error


def _metric(name: str) -> str:
    if kind(name) not in METRICS:
        raise argparse.ArgumentTypeError(
            f"invalid choice: '{name}' (choose from {', '.join(METRICS)}, train/...loss, "
            "valid/...loss)"
        )
    return name


def _new(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import new, space

    searched = space.parse(args.settings)
    sweep = new.make(directory, args.config, searched, args.sampler, args.trials, args.metric)
    count = len(sweep.trials())
    trials = "1 trial" if count == 1 else f"{count} trials"
    say(f"{trials}, compared by {sweep.metric} (the best epoch). Train with:")
    print_clean(f"  robomimic-ddp sweep run {args.directory}")
    return EXIT_DONE


def _train(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import study, worker

    sweep = study.Sweep(directory)
    sweep.require_same_config()
    checks.require_patched()
    if args.ranks > 1:
        _require_trainable(sweep, args.ranks)
    with quiet_streams.without_errors():  # Ctrl-C ends `| tee`, too
        print_clean(f"what each trial prints is in {sweep.directory / 'logs'}")
        code = worker.Worker(sweep, _gpus(args.ranks), args.ranks).run()
        if code == EXIT_STOPPED:
            print_clean(f"Resume with:\n  robomimic-ddp {shlex.join(sys.argv[1:])}")
    return code


def _require_trainable(sweep: Sweep, ranks: int) -> None:
    """Raise the first trial's ConfigError, OptionError, PlanError or UsageError if none of the
    remaining trials can train on that many ranks. A batch that is yet to be drawn may split.
    """
    from robomimic_ddp.commands.sweep import new, space, study

    sample, problem = next(space.samples(sweep.space)), None
    for trial in sweep.trials():
        if trial.state not in ("running", "waiting"):
            continue
        undrawn = [key for key in _BATCH_KEYS if key in sweep.space and key not in trial.values]
        if trial.is_finished or not all(sweep.space[key].single() for key in undrawn):
            return
        try:
            new.checked(sweep.directory / study.CONFIG, {**sample, **trial.values}, ranks)
        except RobomimicDDPError as error:
            problem = problem or error
        else:
            return
    if problem is not None:
        raise problem


def _show(args: argparse.Namespace, directory: Path) -> int:
    from robomimic_ddp.commands.sweep import show, study

    for line in show.lines(study.Sweep(directory)):
        say(line)
    return EXIT_DONE


def _gpus(ranks: int) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES of each trial that can train at a time, with `ranks` GPUs
    each: [""], one trial on the CPU, if no GPU is visible. Raises UsageError for too few GPUs.
    """
    gpus = devices.visible_devices(env.variables())
    if gpus and len(gpus) < ranks:
        raise UsageError(
            f"--ranks {ranks}: a trial needs {ranks} GPUs, and {len(gpus)} are visible."
        )
    starts = range(0, len(gpus) - ranks + 1, ranks)
    return [",".join(gpus[start : start + ranks]) for start in starts] or [""]
