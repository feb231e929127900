"""The command: runs every check and prints a line for each finding."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from robomimic_ddp.commands.doctor import machine, round_trip, software
from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.commands.doctor.probe import probe
from robomimic_ddp.config import env
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED
from robomimic_ddp.terminal import announce, print_clean, whole_number, width, wrapped

CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    software.check_versions,
    software.check_torch,
    software.check_rlds,
    machine.check_gpus,
    machine.check_shared_memory,
    machine.check_cores,
    machine.check_network,
    machine.check_variables,
    software.check_host,
    round_trip.check_ranks,
)
PROBED = ("torch", "torchvision", "diffusers", "tensorflow_datasets", software.HOST)
_INDENT = " " * 6
_COLOURS = {OK: "\033[32m", WARN: "\033[33m", FAIL: "\033[31m"}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp doctor`."""
    add = parser.add_argument
    what = "also start N ranks and time their collectives"
    add("--ranks", type=whole_number(1), metavar="N", help=what)
    add("--json", action="store_true", help="print a list of findings as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Print the findings; return 1 if any is a failure."""
    findings = []
    for finding in examine(args.ranks):
        findings.append(finding)
        if not args.json:
            _print(finding)
    levels = [finding.level for finding in findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in (OK, WARN, FAIL))
    texts = json.dumps([asdict(finding) for finding in findings], indent=2)
    print_clean(texts if args.json else f"\n{counts}")
    return EXIT_REFUSED if FAIL in levels else EXIT_DONE


def examine(ranks: int | None = None) -> Iterator[Finding]:
    """Yield the findings of every check; an error in a check is a finding, too."""
    announce(f"importing {', '.join(PROBED)}")
    with ThreadPoolExecutor() as threads:
        probed = dict(zip(PROBED, threads.map(probe, PROBED), strict=True))
    context = Context(env.variables(), probed, ranks)
    for check in CHECKS:
        name = check.__name__.replace("check_", "").replace("_", " ")
        try:
            for finding in check(context):
                yield replace(finding, check=name)
        except Exception as error:  # the other checks still have to run
            message = f"the check failed: {type(error).__name__}: {error}"
            yield Finding(name, WARN, message, "Please report it with this line.")


def _print(finding: Finding) -> None:
    columns, label = width(), f"{finding.level:4}  "
    lines = wrapped(f"{finding.check}: {finding.message}", columns, _INDENT, label)
    if finding.remedy:
        lines += wrapped(finding.remedy, columns, f"{_INDENT}   ", f"{_INDENT}-> ")
    escape = "" if columns is None else _COLOURS[finding.level]
    print_clean("\n".join(lines), colour=(label, escape))
