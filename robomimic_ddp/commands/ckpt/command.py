"""`robomimic-ddp ckpt show|convert|export`: shows, rewrites and exports checkpoints.

torch is imported after the command line was checked.
"""

from __future__ import annotations

import argparse
import os

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, UsageError
from robomimic_ddp.monitoring.records import run_summary
from robomimic_ddp.terminal import announce, print_clean, say


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp ckpt`."""
    actions = parser.add_subparsers(dest="action", metavar="show|convert|export", required=True)
    show = actions.add_parser("show", help="print the contents")
    show.add_argument("path")
    show.add_argument("--keys", action="store_true", help="also print every key with its shape")
    convert = actions.add_parser("convert", help="write the same weights in another layout")
    convert.add_argument("path")
    export = actions.add_parser(
        "export", help="write the policy as a folder: safetensors, config, statistics, model card"
    )
    export.add_argument("path")
    export.add_argument("folder", help="the new folder")
    add = convert.add_argument
    add("-o", "--output", required=True, metavar="FILE", help="the new file, .pth")
    what = (
        "plain: keys without `module.`; host: with it, as DataParallel hosts (DROID's family) "
        "write them; default %(default)s"
    )
    add("--layout", choices=("keep", "plain", "host"), default="keep", help=what)
    add("--force", action="store_true", help="replace an existing file")
    what = "write the averaged weights as nets, too, and nothing of the training"
    add("--ema", action="store_true", help=what)


def run(command: str, args: argparse.Namespace) -> int:
    """Run the command. Raises CheckpointError and UsageError."""
    if args.action == "show":
        _show(args)
    elif args.action == "export":
        _export(args)
    else:
        _convert(args)
    return EXIT_DONE


def _announced(source: str) -> None:
    """Say which checkpoint is read. Raises CheckpointError for an absent one, before torch is
    imported, which takes seconds.
    """
    paths.checkpoint(source)
    announce(f"reading {source}")


def _show(args: argparse.Namespace) -> None:
    _announced(args.path)
    from robomimic_ddp.commands.ckpt import contents

    for line in contents.described(contents.read(args.path), args.path, args.keys):
        say(line)
    directory = run_summary.directory_of(paths.expanded(args.path))
    resume = directory and run_summary.resume_command(directory)
    if resume:
        print_clean(f"its run can be resumed:\n  {resume}")


def _export(args: argparse.Namespace) -> None:
    folder = paths.expanded(args.folder)
    reason = paths.why_not_writable(folder.parent)
    if reason is not None:
        raise UsageError(f"{args.folder!r} cannot be written: {reason}.")
    if os.path.lexists(folder):
        raise UsageError(f"{args.folder!r} already exists. Name a new folder.")
    _announced(args.path)
    from robomimic_ddp.commands.ckpt import contents
    from robomimic_ddp.commands.ckpt.export import export

    weights, sizes = export(contents.read(args.path), paths.expanded(args.path), folder)
    host = "its load_policy.py works without robomimic-ddp"
    say(f"{folder}: the weights are {weights}; {host if sizes is None else f'the net is {sizes}'}")


def _convert(args: argparse.Namespace) -> None:
    output = paths.expanded(args.output)
    if output.suffix not in (".pth", ".pt", ".ckpt"):
        raise UsageError(
            f"--output {output}: expected a name ending in .pth. `robomimic-ddp ckpt export` "
            "writes safetensors."
        )
    reason = paths.why_not_writable(output.parent)
    if reason is not None:
        raise UsageError(f"--output {args.output!r} cannot be written: {reason}.")
    if paths.expanded(args.path).resolve() == output.resolve():
        raise UsageError(
            f"--output {args.output!r} is the checkpoint to read, and what the new file leaves "
            "out would be lost. Name another file."
        )
    if os.path.lexists(output) and not args.force:
        raise UsageError(
            f"--output {args.output!r} already exists. Name another file, or replace it with "
            "--force."
        )
    _announced(args.path)
    from robomimic_ddp.commands.ckpt import contents

    content = contents.converted(contents.read(args.path), args.layout, args.ema, args.path)
    contents.write(content, output)
    say(f"{output}: {', '.join(contents.section_sizes(content))}")
