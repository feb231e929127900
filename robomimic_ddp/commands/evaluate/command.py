"""`robomimic-ddp evaluate RUN`: measure the success of a run's checkpoints in several processes,
while training continues or after it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.launch import devices
from robomimic_ddp.commands.training_process import handling
from robomimic_ddp.config import env, machine, paths
from robomimic_ddp.distributed import quiet_streams
from robomimic_ddp.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    CheckpointError,
    UsageError,
)
from robomimic_ddp.monitoring.records import evaluation, run_summary
from robomimic_ddp.terminal import announce, print_clean, say, table, whole_number, width

LOG = "evaluation.log"
_FILMED = 4
"""Episodes of an environment that --video films."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp evaluate`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, with models/ and last.pth")
    what = "last, best, all, or paths of files; default: last, with --follow all"
    add("--checkpoints", nargs="+", metavar="WHICH", help=what)
    what = "evaluate new checkpoints as training writes them, until it ends"
    add("--follow", action="store_true", help=what)
    what = "episodes per environment; default: the config's experiment.rollout.n"
    add("--episodes", type=whole_number(1), metavar="N", help=what)
    what = "processes that run episodes; default auto: one per core, as far as memory allows"
    add("--workers", type=_workers, default=None, metavar="auto|N", help=what)
    what = "GPUs that the workers share, such as 2,3; default: all visible ones"
    add("--gpus", metavar="LIST", help=what)
    what = "seconds that an episode may take, and the set-up before it; default 600"
    add("--episode-seconds", type=whole_number(1), default=600, metavar="S", help=what)
    what = f"record the first {_FILMED} episodes of each environment, in the run's videos/"
    add("--video", action="store_true", help=what)


def _workers(text: str) -> int | None:
    return None if text == "auto" else whole_number(1, 1000)(text)


def _for_file(path: Path) -> str:
    run = run_summary.directory_of(path) if path.is_file() else None
    return f" Try: robomimic-ddp evaluate {run} --checkpoints {path}" if run else ""


@quiet_streams.without_errors()  # results are recorded without `| tee`, too
def run(command: str, args: argparse.Namespace) -> int:
    """Evaluate, print the table, and return the exit code: 1 where episodes were left out. Raises
    CheckpointError, after the table, where a checkpoint was left out, UsageError and DataError.
    """
    directory = paths.run_directory(args.run, _for_file(paths.expanded(args.run))).resolve()
    example = paths.example_below(directory, "config.json")
    if example and not (directory / "config.json").exists():
        raise UsageError(f"{args.run} is not the folder of a run. Expected one{example}.")
    if args.follow and args.checkpoints:
        raise UsageError("--follow evaluates every checkpoint: leave out --checkpoints.")
    announce(f"reading the checkpoints of {directory}")
    from robomimic_ddp.commands.evaluate import checkpoints, record

    if not args.follow:
        selected = checkpoints.select(directory, args.checkpoints or ["last"])
    with ExitStack() as stack:
        stack.enter_context(handling([signal.SIGTERM, signal.SIGHUP], signal.default_int_handler))
        stack.enter_context(record.locked(directory))
        evaluator = stack.enter_context(_evaluator(directory, args))
        if args.follow:
            results, faults = _follow(directory, args.episodes, evaluator)
            shown = evaluation.results(directory)[::-1]  # those of earlier processes, too
        else:
            results, faults = _evaluate(selected, evaluator)
            shown = results
    if shown:
        rows = [record.HEAD, *map(record.cells, shown)]
        print_clean("\n".join(table(rows, width())))
    if faults:
        raise CheckpointError(f"no result for {len(faults)} checkpoint(s): {' '.join(faults)}")
    return EXIT_REFUSED if any(result.get("lost") for result in results) else EXIT_DONE


def _evaluate(selected: Sequence[Path], evaluator: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluate and return the results, and why each checkpoint that was left out has none."""
    results: list[dict[str, Any]] = []
    faults: list[str] = []
    for path in selected:
        try:
            results += evaluator.evaluate(path)
        except CheckpointError as error:
            faults.append(str(error))
            if len(selected) > 1:
                say(f"warning: a checkpoint is left out: {error}", file=sys.stderr)
    return results, faults


def _follow(
    directory: Path, episodes: int | None, evaluator: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluate new checkpoints until training ends, and print each result; return as `_evaluate`
    does.
    """
    from robomimic_ddp.commands.evaluate import follow, record

    results: list[dict[str, Any]] = []
    follower = follow.Follower(directory, episodes)
    evaluator.done |= follower.weights
    for path in follower.paths():
        try:
            new = evaluator.evaluate(path)
        except CheckpointError as error:
            follower.failed(path, error)
            continue
        for result in new:
            say(record.sentence(result))
        results += new
    if run_summary.is_incomplete(directory):
        say("training ended before its last epoch; evaluate again when it has been resumed")
    faults = [text for _, text in follower.unreadable.values()]
    if not results and not faults:
        before = len(follower.weights)
        known = f"{before} evaluated before; leave out --follow to evaluate one again"
        say(f"no new checkpoint in {directory} ({known if before else 'none at all'})")
    return results, faults


def _gpus(text: str | None) -> list[str]:
    """Return the GPUs to play on, as CUDA_VISIBLE_DEVICES names them. Raises UsageError."""
    variables = env.variables()
    if text is not None:
        variables["CUDA_VISIBLE_DEVICES"] = text
    gpus = devices.visible_devices(variables)
    if text and len(gpus) < len(text.split(",")):
        raise UsageError(f"--gpus {text}: this machine has {devices.installed_gpus()} GPU(s).")
    return gpus


@contextmanager
def _evaluator(directory: Path, args: argparse.Namespace) -> Iterator[Any]:
    """For the block, an Evaluator with its processes and a folder for copies of checkpoints."""
    from robomimic_ddp.commands.evaluate import evaluator, record, workers

    gpus = _gpus(args.gpus)
    count, cores = args.workers, machine.usable_cores()
    if count is None:
        count = workers.most_workers(cores)
    elif count > cores:
        say(f"note: {count} workers share {cores} core(s): {cores} would be as fast")
    where = f"GPU {', '.join(gpus)}" if gpus else "the CPU"
    say(f"evaluation of {directory}: {count} worker(s) on {where}")
    for left in directory.glob(".evaluation-*"):
        shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        log = stack.enter_context(files.opened_to_write(directory / LOG))
        folder = tempfile.mkdtemp(prefix=".evaluation-", dir=directory)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pool = workers.Pool(count, gpus, log, args.episode_seconds)
        stack.callback(pool.close)
        trackers = record.Trackers(directory)
        stack.callback(trackers.close)
        filmed = _FILMED if args.video else 0
        yield evaluator.Evaluator(directory, Path(folder), pool, trackers, args.episodes, filmed)
