"""`robomimic-ddp bench --config cfg.json --ranks 1,2,4`: trains a few steps of the user's job on
each number of ranks, and compares speed and waiting times.

All numbers are those that a training run writes into its history (monitoring/throughput.py).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.bench import report
from robomimic_ddp.commands.launch import checks, devices, torchrun
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import end_with_parent, env, launch_env, tree
from robomimic_ddp.config.host import json_config
from robomimic_ddp.errors import EXIT_DONE, LaunchError, UsageError
from robomimic_ddp.monitoring.records import history
from robomimic_ddp.terminal import print_clean, say, whole_number

EPOCHS = 3
"""Epochs of each start that are measured."""
_LOG_LINES = 15
_ALWAYS = {
    "experiment.name": "bench",
    "experiment.validate": "false",
    "experiment.rollout.enabled": "false",
    "experiment.save.enabled": "false",
    "experiment.logging.log_tb": "false",
    "experiment.render_video": "false",
    "ddp.resume": "false",
    "ddp.schedule": "steps",
}
"""Settings that every host has."""
_WHERE_SET = {
    "experiment.logging.log_wandb": "false",
    "experiment.mse.enabled": "false",
    "train.hdf5_validation_filter_key": "null",  # refused where nothing is validated
}
"""Settings that some hosts have: changed only where the config sets them."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp bench`."""
    add = parser.add_argument
    add("settings", nargs="*", metavar="KEY=VALUE", help="config values to override")
    add("--config", required=True, metavar="FILE", help="your job's JSON config")
    what = "numbers of ranks to compare, such as 1,2,4"
    add("--ranks", required=True, type=_ranks, metavar="N,N", help=what)
    add(
        "--steps", type=whole_number(1), default=30, metavar="N", help="steps per epoch; default 30"
    )
    what = f"epochs before the {EPOCHS} that are measured; default 1"
    add("--warmup", type=whole_number(0), default=1, metavar="N", help=what)
    what = "times that each number of ranks is started, alternating; default 2"
    add("--rounds", type=whole_number(1), default=2, metavar="N", help=what)


def _ranks(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < len(words) or 0 in numbers or len({*numbers}) < len(numbers):
        raise argparse.ArgumentTypeError(
            f"{text}: expected numbers of ranks from 1, each once, such as 1,2,4"
        )
    return tuple(sorted(numbers))


def run(command: str, args: argparse.Namespace) -> int:
    """Measure, print the table, and return the exit code. Raises UsageError, PatchError,
    and the errors of the config.
    """
    # What no rank could do is refused before the first is measured.
    devices.ranks(args.ranks[-1], env.variables(), "--ranks")
    _job(args, args.ranks[0], tempfile.gettempdir())
    checks.require_patched()
    speeds = list(report.compare(_measure(args)))
    say("")
    for line in report.lines(speeds):
        say(line)
    base = report.ranks_text(args.ranks[0])
    say(
        f"medians of {args.rounds} x {EPOCHS} epochs of {args.steps} steps, each start after "
        f"{args.warmup} epoch(s) of warm-up; speed-up and efficiency are relative to {base}"
    )
    return EXIT_DONE


def _job(args: argparse.Namespace, ranks: int, folder: str) -> Settings:
    """Return the launcher's settings of the job on `ranks` ranks, which writes into `folder`."""
    config = json_config.read_json(args.config, "--config ")
    changes = {**_ALWAYS, **{k: v for k, v in _WHERE_SET.items() if tree.at(config, k) is not None}}
    changes |= {
        "train.output_dir": json.dumps(folder, ensure_ascii=False),  # else read as YAML
        "train.num_epochs": str(args.warmup + EPOCHS),
        "experiment.epoch_every_n_steps": str(args.steps),
    }
    for word in args.settings:
        name, equals, _ = word.partition("=")
        if not equals:
            raise UsageError(f"found {word!r}, expected KEY=VALUE, such as train.batch_size=64.")
        if name in changes:
            raise UsageError(
                f"{word}: bench sets {name} itself, so that all runs are comparable and leave "
                "nothing behind. Remove it from the command line."
            )
    words = [*args.settings, *(f"{key}={value}" for key, value in changes.items())]
    return Settings(config=args.config, gpus=ranks, overrides=tuple(words))


def _measure(args: argparse.Namespace) -> report.Epochs:
    epochs: report.Epochs = {ranks: [] for ranks in args.ranks}
    say(
        f"training {args.rounds * len(args.ranks)} times, {args.warmup + EPOCHS} epochs of "
        f"{args.steps} steps each; a line follows each training"
    )
    with (
        tempfile.TemporaryDirectory(prefix="robomimic-ddp-bench-") as folder,
        # Like Ctrl-C: end the training and remove its files.
        training_process.handling((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler),
    ):
        for number in range(args.rounds):
            for ranks in args.ranks if number % 2 == 0 else reversed(args.ranks):
                started = time.monotonic()
                output = Path(folder, f"{number}-{ranks}")
                logs = train(_job(args, ranks, str(output)), output)[args.warmup :]
                if not logs:
                    raise LaunchError(f"{report.ranks_text(ranks)}: no epoch was trained.")
                epochs[ranks].append(logs)
                rate = statistics.median(log["Time_Samples_Per_Second"] for log in logs)
                seconds = time.monotonic() - started
                say(
                    f"round {number + 1} of {args.rounds}, {report.ranks_text(ranks)}: {rate:.1f} "
                    f"samples/s ({seconds:.0f} s with its start)"
                )
    return epochs


def train(job: Settings, output: Path) -> list[Mapping[str, float]]:
    """Return the train log of each epoch. Raises LaunchError if the training fails."""
    variables = env.variables()
    command = torchrun.command(job, variables)
    log = output.with_suffix(".log")
    with open(log, "wb") as file:
        added = {**command.added, "TMPDIR": str(output.parent)}  # removed with it
        tie = end_with_parent.ending_with(os.getpid(), signal.SIGTERM)
        # As torchrun sets it for several ranks: one rank would compute with the cores of all.
        inherited = launch_env.without_rank(variables)
        variables = {"OMP_NUM_THREADS": "1", **inherited, **added}
        process = training_process.start(command.quiet, file, variables, tie)
    try:
        code = process.wait()
    finally:
        training_process.stop(process)
    directories = [file.parent for file in output.glob(f"*/*/{history.FILE_NAME}")]
    if code != 0 or not directories:
        text = files.read_end(log).splitlines()
        print_clean("\n".join(text[-_LOG_LINES:]), file=sys.stderr)
        raise LaunchError(
            f"the training on {report.ranks_text(job.gpus)} ended with exit code {code}, so no "
            "speed was measured; its last lines are above. To see its complete output, run "
            f"`robomimic-ddp launch --config {job.config} --gpus {job.gpus}`."
        )
    records = history.read(directories[0])
    return [record["log"] for record in records if record["phase"] == "train"]
