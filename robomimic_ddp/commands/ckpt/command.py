"""`robomimic-ddp ckpt show|convert|average`: shows, converts and averages checkpoints.

torch is imported when the command line is right.
"""

from __future__ import annotations

import argparse
import os

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, UsageError
from robomimic_ddp.monitoring import run_summary
from robomimic_ddp.terminal import print_clean, say


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp ckpt`."""
    actions = parser.add_subparsers(dest="action", metavar="show|convert|average", required=True)
    show = actions.add_parser("show", help="what is inside")
    show.add_argument("path")
    show.add_argument("--keys", action="store_true", help="also every key with its shape")
    convert = actions.add_parser("convert", help="the same weights in another layout")
    convert.add_argument("path")
    average = actions.add_parser("average", help="the mean of several checkpoints' weights")
    average.add_argument("paths", nargs="+", metavar="path")
    for sub in (convert, average):
        sub.add_argument("-o", "--output", required=True, help="the file; .safetensors or .pth")
        sub.add_argument(
            "--layout",
            choices=("keep", "plain", "host"),
            default="keep",
            help="plain: nets without `module.` in their keys; host: with it, as DataParallel "
            "hosts (DROID's family) write them",
        )
        sub.add_argument("--force", action="store_true", help="replace the file if there is one")
        sub.add_argument("--ema", action="store_true", help="the averaged weights only, as nets")


def run(command: str, args: argparse.Namespace) -> int:
    """Run the command. Raises CheckpointError and UsageError."""
    if args.action == "show":
        _show(args)
    else:
        _rewrite(args)
    return EXIT_DONE


def _show(args: argparse.Namespace) -> None:
    from robomimic_ddp.commands.ckpt import contents

    for line in contents.described(contents.read(args.path), args.path, args.keys):
        say(line)
    directory = run_summary.directory_of(paths.expanded(args.path))
    resume = directory and run_summary.resume_command(directory)
    if resume:
        print_clean(f"its run can be resumed:\n  {resume}")


def _rewrite(args: argparse.Namespace) -> None:
    """Write one checkpoint in another layout, or the mean of several."""
    sources = [args.path] if args.action == "convert" else args.paths
    output = paths.expanded(args.output)
    if output.suffix not in (".pth", ".pt", ".ckpt", ".safetensors"):
        raise UsageError(f"--output {output}: expected a name ending in .pth or .safetensors.")
    reason = paths.why_not_writable(output.parent)
    if reason is not None:
        raise UsageError(f"--output {args.output!r} cannot be written to: {reason}.")
    if any(paths.expanded(source).resolve() == output.resolve() for source in sources):
        raise UsageError(
            f"--output {args.output!r} is the checkpoint that is read, and what the new file "
            "leaves out would be lost. Name another file."
        )
    if os.path.lexists(output) and not args.force:
        raise UsageError(
            f"--output {args.output!r} is there already. Name another file, or replace it with "
            "--force."
        )
    from robomimic_ddp.commands.ckpt import contents

    contents.make_folder(output)
    content = contents.averaged([contents.read(path) for path in sources], sources)
    content = contents.converted(content, args.layout, args.ema, sources[0])
    contents.write(content, output, sources[0])
    say(f"{output}: {', '.join(contents.parts(content))}")
