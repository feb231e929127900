"""The commands `robomimic-ddp bench step`, `bench data` and `bench scale`."""

from __future__ import annotations

import argparse

from robomimic_ddp.bench import data_command, scale_command, step_command

KINDS = {
    "step": (step_command, "a training step of the unedited host against the edited one"),
    "data": (data_command, "loading RLDS data: ours, a host's, and the limit"),
    "scale": (scale_command, "efficiency at 2 to 1024 GPUs, modelled from what is measured"),
}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp bench`."""
    kinds = parser.add_subparsers(dest="kind", metavar="step|data|scale", required=True)
    for name, (module, summary) in KINDS.items():
        module.add_arguments(kinds.add_parser(name, help=summary))


def run(command: str, args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the rows. Raises UsageError and ConfigError."""
    return KINDS[args.kind][0].run(args)
