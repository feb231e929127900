"""`robomimic-ddp ckpt show|convert|average|export`: shows, rewrites and exports checkpoints.

torch is imported after the command line was checked.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, UsageError
from robomimic_ddp.monitoring.records import run_summary
from robomimic_ddp.terminal import announce, listed, print_clean, say


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp ckpt`."""
    actions = parser.add_subparsers(
        dest="action", metavar="show|convert|average|export", required=True
    )
    show = actions.add_parser("show", help="print the contents")
    show.add_argument("path")
    show.add_argument("--keys", action="store_true", help="also print every key with its shape")
    convert = actions.add_parser("convert", help="write the same weights in another layout")
    convert.add_argument("path")
    average = actions.add_parser("average", help="write the mean of several checkpoints' weights")
    average.add_argument("paths", nargs="+", metavar="path")
    export = actions.add_parser(
        "export", help="write the policy as a folder: safetensors, config, statistics, model card"
    )
    export.add_argument("path")
    export.add_argument("folder", help="the new folder")
    for add in (convert.add_argument, average.add_argument):
        add("-o", "--output", required=True, metavar="FILE", help="the new file, .pth")
        what = (
            "plain: keys without `module.`; host: with it, as DataParallel hosts (DROID's family) "
            "write them; default %(default)s"
        )
        add("--layout", choices=("keep", "plain", "host"), default="keep", help=what)
        add("--force", action="store_true", help="replace an existing file")
        add(
            "--ema",
            action="store_true",
            help="write the averaged weights as nets, too, and nothing of the training",
        )


def run(command: str, args: argparse.Namespace) -> int:
    """Run the command. Raises CheckpointError and UsageError."""
    if args.action == "show":
        _show(args)
    elif args.action == "export":
        _export(args)
    else:
        _rewrite(args)
    return EXIT_DONE


def _announced(sources: Sequence[str]) -> None:
    """Say which checkpoints are read. Raises CheckpointError for an absent one, before torch is
    imported, which takes seconds.
    """
    for source in sources:
        paths.checkpoint(source)
    announce(f"reading {listed(sources)}")


def _show(args: argparse.Namespace) -> None:
    _announced([args.path])
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
    _announced([args.path])
    from robomimic_ddp.commands.ckpt import contents
    from robomimic_ddp.commands.ckpt.export import export

    weights, sizes = export(contents.read(args.path), paths.expanded(args.path), folder)
    host = "its load_policy.py works without robomimic-ddp"
    say(f"{folder}: the weights are {weights}; {host if sizes is None else f'the net is {sizes}'}")


def _rewrite(args: argparse.Namespace) -> None:
    """Write one checkpoint in another layout, or the mean of several."""
    sources = [args.path] if args.action == "convert" else args.paths
    output = paths.expanded(args.output)
    if output.suffix not in (".pth", ".pt", ".ckpt"):
        raise UsageError(
            f"--output {output}: expected a name ending in .pth. `robomimic-ddp ckpt export` "
            "writes safetensors."
        )
    reason = paths.why_not_writable(output.parent)
    if reason is not None:
        raise UsageError(f"--output {args.output!r} cannot be written: {reason}.")
    if any(paths.expanded(source).resolve() == output.resolve() for source in sources):
        raise UsageError(
            f"--output {args.output!r} is the checkpoint to read, and what the new file leaves "
            "out would be lost. Name another file."
        )
    if os.path.lexists(output) and not args.force:
        raise UsageError(
            f"--output {args.output!r} already exists. Name another file, or replace it with "
            "--force."
        )
    _announced(sources)
    from robomimic_ddp.commands.ckpt import averaging, contents

    content = averaging.averaged([contents.read(path) for path in sources], sources)
    content = contents.converted(content, args.layout, args.ema, sources[0])
    contents.write(content, output)
    parts = filter(None, [contents.mean_of(content), *contents.section_sizes(content)])
    say(f"{output}: {', '.join(parts)}")
