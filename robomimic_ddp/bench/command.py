"""The commands `robomimic-ddp bench step`, `bench data` and `bench scale`."""

from __future__ import annotations

import argparse

from robomimic_ddp import options
from robomimic_ddp.bench import data_command, rank_rows, ranks, scale_command, step
from robomimic_ddp.bench.output import write_rows
from robomimic_ddp.errors import EXIT_DONE, OptionError, UsageError

QUICK_PAIRS, PAIRS = 5, 30


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp bench`."""
    kinds = parser.add_subparsers(dest="kind", metavar="step|data|scale", required=True)
    steps = kinds.add_parser(
        "step", help="a training step of the unedited host against the edited one, one process"
    )
    steps.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} rounds, not {PAIRS}")
    steps.add_argument("--rounds", type=int, help="how often each variant takes a step in turn")
    steps.add_argument("--batch", type=int, default=16, help="samples in a step; default 16")
    steps.add_argument("--threads", type=int, default=1, help="of each process; default 1")
    steps.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    steps.add_argument("--ranks", type=int, default=1, help="beside hand-written DDP; default 1")
    steps.add_argument(
        "--beside",
        metavar="NAME,NAME",
        default=",".join(ranks.OTHERS),
        help="with --ranks: what ours is measured beside; default all: %(default)s",
    )
    steps.add_argument(
        "--down-dims", metavar="N,N", default="", help="channels of the net; default the host's"
    )
    steps.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE[,...]",
        help="with --ranks: ours with these options, too; may be given several times",
    )
    data_command.add_arguments(
        kinds.add_parser("data", help="loading RLDS data: ours, a host's, and the limit")
    )
    scale_command.add_arguments(
        kinds.add_parser(
            "scale", help="efficiency at 2 to 1024 GPUs, modelled from what is measured"
        )
    )


def run(command: str, args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the rows. Raises UsageError and ConfigError."""
    if args.kind == "data":
        return data_command.run(args)
    if args.kind == "scale":
        return scale_command.run(args)
    rounds = args.rounds or (QUICK_PAIRS if args.quick else PAIRS)
    for name in ("rounds", "batch", "threads", "ranks"):
        value = rounds if name == "rounds" else getattr(args, name)
        if value < 1:
            raise UsageError(f"--{name} {value}: expected 1 or more.")
    down_dims = _numbers("--down-dims", args.down_dims)
    with_options = [_options(text) for text in args.option]
    if args.ranks > 1:
        team = ranks.Job(args.batch, args.threads, args.ranks, down_dims)
        found = ranks.measure(team, rounds, _names(args.beside), with_options)
        rows = rank_rows.rows(team, found)
        print("\n".join(rank_rows.lines(team, found)))
    else:
        job = step.Job(args.batch, args.threads, down_dims)
        variants = {**step.VARIANTS, **{_label(one): one for one in with_options}}
        measured = step.measure(job, rounds, variants)
        rows = step.rows(job, measured, variants)
        print("\n".join(step.table(rows)))
        print("\n".join(step.ratios(measured)))
    write_rows(args.json, rows)
    return EXIT_DONE


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
