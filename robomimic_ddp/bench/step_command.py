"""The command `robomimic-ddp bench step`."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from robomimic_ddp import options
from robomimic_ddp.bench import (
    beginning,
    every_option,
    rank_rows,
    ranks,
    rollouts,
    step,
    step_rows,
    team,
)
from robomimic_ddp.bench.output import write_rows
from robomimic_ddp.errors import EXIT_DONE, ConfigError, OptionError, UsageError

QUICK, LONG = 5, 30
"""Rounds."""
CAMERAS_ON_CUDA = (0, 2)
_ALL = (
    "every option of speed, a small net, 2 ranks; fewer rounds where an option's take more than "
    f"{every_option.LONGEST:g} s"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `robomimic-ddp bench step`."""
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK} rounds, not {LONG}")
    add("--rounds", type=int, help="how often each variant takes a step in turn")
    add("--batch", type=int, default=16, help="samples in a step; default 16")
    add("--threads", type=int, default=1, help="of each process; default 1")
    add("--json", metavar="FILE", help="also write the rows as JSON")
    add("--ranks", type=int, help="beside hand-written DDP; default 1")
    add(
        "--beside",
        metavar="NAME,NAME",
        help=f"with --ranks: what ours is measured beside; default all: {','.join(ranks.OTHERS)}",
    )
    add("--down-dims", metavar="N,N", default="", help="channels of the net; default the host's")
    add("--cameras", type=int, help="pictures in an observation; default none")
    add("--pixels", type=int, help="of a picture's sides; default 128")
    add("--loader", action="store_true", help="batches from a DataLoader, as in training")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE[,...]",
        help="ours with these options, too; may be given several times",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: one GPU, in several precisions, for states and for two cameras; kernel "
        "launches, busy share and memory, too",
    )
    other = parser.add_argument_group(
        "something else than the above"
    ).add_mutually_exclusive_group()
    add = other.add_argument
    add("--all-options", action="store_true", help=_ALL)
    add("--rollouts", action="store_true", help="episodes on N ranks, a core each, and on one")
    add("--start-up", action="store_true", help="how long commands and a start take")


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the rows. Raises UsageError and ConfigError."""
    _require_sensible(args)
    if args.device == "cuda":
        found = _on_cuda(args)
    elif args.start_up:
        found = _start_up(args)
    elif args.rollouts:
        found = _rollouts(args)
    elif args.all_options or (args.ranks or 1) > 1:
        found = _on_ranks(args)
    else:
        found = _one_process(args, step.VARIANTS, _job(args))
    write_rows(args.json, found)
    return EXIT_DONE


def _rounds(args: argparse.Namespace, quick: int = QUICK, long: int = LONG) -> int:
    return args.rounds or (quick if args.quick else long)


def _job(args: argparse.Namespace, cameras: int = 0) -> step.Job:
    return step.Job(
        args.batch,
        args.threads,
        _numbers("--down-dims", args.down_dims),
        cameras if args.cameras is None else args.cameras,
        args.pixels or 128,
        args.loader,
        args.device,
    )


def _ranks_job(args: argparse.Namespace, least: int = 2) -> team.Job:
    one, count = _job(args), args.ranks or least
    made = team.Job(one.batch, one.threads, count, one.down_dims, one.cameras, one.pixels)
    return replace(made, loads=one.loads)


def _one_process(args: argparse.Namespace, variants: dict, job: step.Job) -> list[dict]:
    with_options = [_options(text) for text in args.option]
    variants = {**variants, **{_label(one): one for one in with_options}}
    measured = step.measure(job, _rounds(args), variants)
    found = step_rows.rows(job, measured, variants)
    print("\n".join(step_rows.table(measured, found)))
    print("\n".join(step_rows.ratios(measured)))
    return found


def _on_cuda(args: argparse.Namespace) -> list[dict]:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device here (`robomimic-ddp "
            "doctor` says why). Run it on a machine with a GPU; without --device the CPU is "
            "measured."
        )
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    found = []
    for cameras in CAMERAS_ON_CUDA if args.cameras is None else (args.cameras,):
        job = _job(args, cameras)
        size = f" at {job.pixels}x{job.pixels}" if cameras else ""
        print(f"\n{cameras or 'no'} camera(s){size}, {job.batch} samples")
        found += _one_process(args, step.ON_CUDA, job)
    return found


def _on_ranks(args: argparse.Namespace) -> list[dict]:
    job, others, longest = _ranks_job(args), args.beside, math.inf
    with_options = [_options(text) for text in args.option]
    if args.all_options:
        others, longest = others or "", every_option.LONGEST
        with_options = [*every_option.OPTIONS, *with_options]
        job = replace(
            job,
            loads=True,
            down_dims=job.down_dims or every_option.DOWN_DIMS,
            cameras=every_option.CAMERAS if args.cameras is None else args.cameras,
            pixels=args.pixels or every_option.PIXELS,
        )
    names = _names(",".join(ranks.OTHERS) if others is None else others)
    found = ranks.measure(job, _rounds(args), names, with_options, longest)
    print("\n".join(rank_rows.lines(job, found)))
    return rank_rows.rows(found)


def _rollouts(args: argparse.Namespace) -> list[dict]:
    job = _ranks_job(args)
    job = replace(job, down_dims=job.down_dims or every_option.DOWN_DIMS)
    found = rollouts.measure(job, _rounds(args))
    print("\n".join(rollouts.lines(found)))
    return rollouts.rows(found)


def _start_up(args: argparse.Namespace) -> list[dict]:
    job = _ranks_job(args)
    seconds = beginning.measure(job, _rounds(args, beginning.QUICK, beginning.LONG))
    found = beginning.rows(job, seconds)
    print("\n".join(beginning.lines(job, found)))
    return found


def _require_sensible(args: argparse.Namespace) -> None:
    least = {"cameras": 0}
    for name in ("rounds", "batch", "threads", "ranks", "cameras", "pixels"):
        value = getattr(args, name)
        if value is not None and value < least.get(name, 1):
            raise UsageError(f"--{name} {value}: expected {least.get(name, 1)} or more.")
    _numbers("--down-dims", args.down_dims)
    _names(args.beside or "")
    for text in args.option:
        _options(text)
    several = args.rollouts or args.start_up or args.all_options
    if several and args.ranks == 1:
        raise UsageError("--ranks 1: what is measured here takes 2 or more.")
    if args.device == "cuda" and (several or (args.ranks or 1) > 1):
        raise UsageError(
            "--device cuda measures one process on one GPU: expected no --ranks, --all-options, "
            "--rollouts or --start-up beside it."
        )


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in ranks.OTHERS]
    if unknown:
        raise UsageError(f"--beside {','.join(unknown)}: expected of {', '.join(ranks.OTHERS)}.")
    return names


def _numbers(name: str, text: str) -> tuple:
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{name} {text}: expected whole numbers, such as 64,128.")
    return tuple(map(int, parts))


def _options(text: str) -> dict[str, str]:
    """Of ours, checked here: a process of the benchmark would only say that it ended."""
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        options.resolve(command_line=found)
    except OptionError as error:
        raise UsageError(f"--option {text}: {error}") from error
    return found


def _label(found: dict[str, str]) -> str:
    return ", ".join(["ours", *(f"{name}={value}" for name, value in found.items())])
