"""The command line of `robomimic-ddp inspect-data`."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, DataError, UsageError
from robomimic_ddp.terminal import announce, print_clean, whole_number

SAMPLE = 64


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp inspect-data`."""
    add = parser.add_argument
    what = "an RLDS dataset's folder (name/version, name, or their parent), or an HDF5 file"
    add("path", nargs="?", help=what)
    what = "folder for a draft config, a schema if none fits, and sample frames"
    add("-o", "--output", metavar="DIR", help=what)
    what = "read at most N episodes, spread over the files; 0: all; default %(default)s"
    add("--episodes", type=whole_number(0), default=SAMPLE, metavar="N", help=what)
    what = (
        "in place of PATH: show a job's data as training reads it; for RLDS data, also compute the "
        "index and statistics ahead of training (under torchrun, too)"
    )
    add("--config", metavar="FILE", help=what)
    add("--json", action="store_true", help="print the report as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Print the report. Raises UsageError, DataError, ConfigError."""

    def show(report: Any) -> None:
        from robomimic_ddp.commands.inspect_data import printing

        print_clean(json.dumps(report, indent=2)) if args.json else printing.show(report)

    if args.config is not None:
        if args.path is not None or args.output is not None:
            raise UsageError("--config shows the data of a job: leave out PATH and -o.")
        announce(f"reading the data of {args.config}")
        from robomimic_ddp.commands.inspect_data import job_data

        job_data.show(args.config, show)
        return EXIT_DONE
    if args.path is None:
        raise UsageError(
            "name a dataset, as in `robomimic-ddp inspect-data PATH`, or a job, as in "
            "`robomimic-ddp inspect-data --config cfg.json`."
        )
    show(_report(args))
    return EXIT_DONE


def _report(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report of the dataset at PATH; with -o, write its drafts first."""
    path = paths.expanded(args.path)
    if not path.exists():
        raise DataError(
            f"{path} does not exist. Name an HDF5 file, or the folder of a dataset that "
            "tensorflow-datasets has prepared, as <name>/<version>."
        )
    reason = None if args.output is None else paths.why_not_writable(args.output)
    if reason is not None:
        raise UsageError(f"-o {args.output!r} cannot be written: {reason}.")
    if path.suffix == ".json" and path.is_file():
        raise UsageError(
            f"{path} is a config. `robomimic-ddp inspect-data --config {shlex.quote(args.path)}` "
            "shows the data of its job."
        )
    announce(f"reading {path}")
    if not path.is_dir():
        from robomimic_ddp.commands.inspect_data import hdf5

        if args.output is not None:
            raise UsageError(
                f"-o writes drafts for RLDS datasets, which are folders; {path} is a file. For "
                "HDF5, start from configs/example_hdf5.json."
            )
        return hdf5.report_of(path)
    from robomimic_ddp.commands.inspect_data import drafts, schemas, survey
    from robomimic_ddp.data.rlds.index.source import Source

    source = Source(survey.find(path))
    episodes, fit = survey.read(source, args.episodes), schemas.best(source)
    report = {**survey.report_of(source, episodes), "schema": fit and fit.schema.name}
    if args.output is not None:
        report |= drafts.write(source, episodes, report, fit, paths.expanded(args.output))
    return report
