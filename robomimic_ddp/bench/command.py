"""The command `robomimic-ddp bench step`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from robomimic_ddp.bench import step
from robomimic_ddp.errors import EXIT_DONE, ConfigError, UsageError

QUICK_PAIRS, PAIRS = 5, 30


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp bench`."""
    kinds = parser.add_subparsers(dest="kind", metavar="step", required=True)
    steps = kinds.add_parser(
        "step", help="a training step of the unedited host against the edited one, one process"
    )
    steps.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} rounds, not {PAIRS}")
    steps.add_argument("--rounds", type=int, help="how often each variant takes a step in turn")
    steps.add_argument("--batch", type=int, default=16, help="samples in a step; default 16")
    steps.add_argument("--threads", type=int, default=1, help="of each process; default 1")
    steps.add_argument("--json", metavar="FILE", help="also write the rows as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the rows. Raises UsageError and ConfigError."""
    rounds = args.rounds or (QUICK_PAIRS if args.quick else PAIRS)
    for name, value in (("rounds", rounds), ("batch", args.batch), ("threads", args.threads)):
        if value < 1:
            raise UsageError(f"--{name} {value}: expected 1 or more.")
    job = step.Job(args.batch, args.threads)
    measured = step.measure(job, rounds)
    rows = step.rows(job, measured)
    print("\n".join(step.table(rows)))
    print("\n".join(step.ratios(measured)))
    if args.json:
        try:
            Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {args.json} cannot be written: {error}.") from error
    return EXIT_DONE
