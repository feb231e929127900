"""The command: runs every check and prints a line for each finding."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from robomimic_ddp.commands.doctor import job, machine, network, ranks, settings, software
from robomimic_ddp.commands.doctor.findings import (
    DEFAULT_PARAMETERS,
    FAIL,
    OK,
    WARN,
    Context,
    Finding,
    probe_torch,
)
from robomimic_ddp.config import env, memory
from robomimic_ddp.config.json_config import read_json
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, ConfigError, UsageError
from robomimic_ddp.terminal import width, wrapped

CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    software.check_python,
    software.check_packages,
    software.check_torch,
    software.check_tensorflow,
    machine.check_gpus,
    machine.check_driver,
    machine.check_backends,
    machine.check_shared_memory,
    machine.check_limits,
    machine.check_disk,
    machine.check_cores,
    machine.check_memory,
    network.check_network,
    settings.check_variables,
    settings.check_host,
    job.check_config,
    ranks.check_ranks,
)
_INDENT = " " * 6
_COLOURS = {OK: "\033[32m", WARN: "\033[33m", FAIL: "\033[31m"}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp doctor`."""
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="also start N ranks and time their collectives"
    )
    parser.add_argument("--config", metavar="FILE", help="also look over a job's JSON config")
    parser.add_argument(
        "--parameters",
        default=DEFAULT_PARAMETERS,
        metavar="N",
        help=f"size of the policy to estimate memory for (default: {DEFAULT_PARAMETERS})",
    )
    parser.add_argument("--json", action="store_true", help="print a list of findings as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if one is a failure. Raises UsageError for a wrong number of
    ranks or parameters, or a config that cannot be read.
    """
    if args.ranks is not None and args.ranks < 1:
        raise UsageError(f"--ranks {args.ranks}: expected 1 or more.")
    try:
        config = read_json(args.config, "--config ") if args.config else None
        parameters = memory.parameters_of(args.parameters)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--parameters {error}.") from error
    context = Context(env.variables(), probe_torch(), args.ranks, args.config, config, parameters)
    findings = []
    for finding in examine(context):
        findings.append(finding)
        if not args.json:
            _print(finding)
    levels = [finding.level for finding in findings]
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        counts = ", ".join(f"{levels.count(level)} {level}" for level in (OK, WARN, FAIL))
        print(f"\n{counts}")
    return EXIT_REFUSED if FAIL in levels else EXIT_DONE


def examine(context: Context) -> Iterator[Finding]:
    """Every check's findings. An error of a check is a finding too."""
    for check in CHECKS:
        try:
            yield from check(context)
        except Exception as error:  # an error must not hide the other checks
            name = check.__name__.replace("check_", "").replace("_", " ")
            found = f"the check failed: {type(error).__name__}: {error}"
            yield Finding(name, WARN, found, "Please report it with this line.")


def _print(finding: Finding) -> None:
    columns, label = width(), f"{finding.level:4}  "
    lines = wrapped(f"{finding.check}: {finding.found}", columns, _INDENT, label)
    if finding.remedy:
        lines += wrapped(finding.remedy, columns, f"{_INDENT}   ", f"{_INDENT}-> ")
    if columns is not None:
        lines[0] = lines[0].replace(label, f"{_COLOURS[finding.level]}{label}\033[0m", 1)
    print("\n".join(lines), flush=True)
