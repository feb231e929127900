"""The command line of `robomimic-ddp inspect-data`."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, DataError, UsageError

SAMPLE = 64
SHEET, CONFIG, SCHEMA = "contact_sheet.png", "config.json", "schema.yaml"


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "path",
        help="an RLDS dataset's folder (name/version, name, or their parent), or an HDF5 file",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help=f"write {SHEET}, {CONFIG} and, if need be, {SCHEMA}"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=SAMPLE,
        metavar="N",
        help=f"most episodes to read, spread over the files; 0 for all; default {SAMPLE}",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Writes the requested files, then prints the report. Raises DataError, ConfigError."""
    path = paths.expanded(args.path)
    if args.episodes < 0:
        raise UsageError(f"--episodes {args.episodes}: expected 0 (all) or more.")
    if not path.exists():
        raise DataError(
            f"{path} does not exist. Name an HDF5 file, or the folder of a dataset that "
            "tensorflow-datasets has prepared, as <name>/<version>."
        )
    output = None if args.output is None else paths.expanded(args.output)
    reason = None if output is None else paths.why_not_writable(output)
    if reason is not None:
        raise UsageError(f"-o {args.output!r} cannot be written to: {reason}.")
    if not path.is_dir():
        from robomimic_ddp.commands.inspect_data import hdf5

        if output is not None:
            raise UsageError(
                f"-o {args.output!r}: schema, config and contact sheet are written for RLDS, and "
                f"{path} is a file. For HDF5 begin with configs/example_hdf5.json."
            )
        report = hdf5.report_of(path)
    else:
        report = _inspect(path, args.episodes, output)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        from robomimic_ddp.commands.inspect_data import printing

        printing.show(report)
    return EXIT_DONE


def _inspect(path: Path, most: int, output: Path | None) -> dict[str, Any]:
    """The report of an RLDS dataset; writes its files to `output`, if given."""
    from robomimic_ddp.commands.inspect_data import contact_sheet, fitting, job_config, survey
    from robomimic_ddp.data.rlds.index.source import Source
    from robomimic_ddp.data.rlds.schema.spec import load_schema

    source = Source(survey.find(path))
    sample = survey.read(source, most)
    report = survey.report_of(source, sample)
    fits = fitting.fits(source)
    report["schemas"] = {name: fit.described() for name, fit in fits.items()}
    chosen = report["schema"] = fitting.best(fits)
    if output is None:
        return report
    written = [output / SHEET]
    try:
        output.mkdir(parents=True, exist_ok=True)
        theirs = output / SCHEMA
        if theirs.exists():  # a user may have edited it: it has precedence
            chosen = report["schema"] = str(theirs.absolute())
            report["left_out"] = fitting.require_fit(source, load_schema(chosen))
        contact_sheet.draw(source, sample, output / SHEET)
        if chosen is None:
            written.append(theirs)
            theirs.write_text(fitting.draft(source), encoding="utf-8")
            chosen = str(theirs.absolute())
        fit = fitting.fit(source, load_schema(chosen))
        if fit.fits:
            config = job_config.make(source, chosen, fit, sample, output.absolute())
            _write(output / CONFIG, json.dumps(config, indent=4) + "\n")
            config_word = shlex.quote(f"load_from={output / CONFIG}")
            report["train"] = (
                f"torchrun --nproc_per_node=N -m robomimic.scripts.train_rlds {config_word}"
            )
            written.append(output / CONFIG)
        else:
            report["next"] = (
                f"{theirs} names no {'action' if not fit.found['actions'] else 'observation'} that "
                f"a policy could take, so {CONFIG} was not written: name it there (features are "
                "offered as comments), then run inspect-data again"
            )
    except OSError as error:
        raise UsageError(f"-o {output} cannot be written to: {error}.") from error
    report["written"] = [str(file) for file in written]
    return report


def _write(file: Path, text: str) -> None:
    """Renames an existing, different file to `.old`."""
    if file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
        file.replace(file.with_name(file.name + ".old"))
    file.write_text(text, encoding="utf-8")
