"""The command `robomimic-ddp`: runs a subcommand, and reports an error with one message and an exit
code.

A subcommand is a module with `add_arguments(parser, command)` and `run(command, args) -> exit
code`, named in COMMANDS and imported only when it runs, so that `--help` stays fast.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from robomimic_ddp import __version__
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_USAGE,
    RobomimicDDPError,
    UsageError,
    did_you_mean,
)
from robomimic_ddp.terminal import print_clean, say

_WRONG_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
_WRONG_OPTION = re.compile(r"unrecognized arguments: (--[^\s=]+)")

_TRAINING_PACKAGES = ("numpy", "torch", "h5py", "tqdm")
"""What every environment of a host has; no command of group "patch" needs one."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


class _Parser(argparse.ArgumentParser):
    """Names the closest command, action or option for one that does not exist."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Blame unknown arguments on the subcommand, whose usage is shown then."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            subcommands = next(a.choices for a in self._actions if a.dest == "command")
            subcommands[parsed.command].error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        word, known = "", []
        if match := _WRONG_CHOICE.search(message):
            word, known = match[1], re.findall(r"[\w/-]+", match[2])
        elif match := _WRONG_OPTION.search(message):
            word = match[1]
            known = [name for action in _actions(self) for name in action.option_strings]
        hint = did_you_mean(word, known, cutoff=0.5)
        self.print_usage(sys.stderr)
        say(f"{self.prog}: error: {message}{hint and '.'}{hint}", file=sys.stderr)
        self.exit(EXIT_USAGE)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subparsers."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


@dataclass(frozen=True)
class Command:
    """A subcommand: its group in `--help`, its module in this package, its line in `--help`."""

    group: str
    module: str
    summary: str


_PATCHES = "patches.commands"
COMMANDS = {
    "status": Command("patch", _PATCHES, "list the edits of the host and what apply would do"),
    "diff": Command("patch", _PATCHES, "print the edits as a patch for git apply"),
    "apply": Command("patch", _PATCHES, "make the edits, all or none"),
    "revert": Command("patch", _PATCHES, "restore the host's files, byte for byte"),
    "run": Command("run", _PATCHES, "run a program of the host with the edits in memory"),
    "launch": Command(
        "run", "commands.launch.command", "start torchrun, as scripts/train_multi_gpu.sh does"
    ),
    "sweep": Command(
        "run", "commands.sweep.command", "train many configs, one on each GPU, and compare"
    ),
    "evaluate": Command(
        "run", "commands.evaluate.command", "roll out a run's checkpoints, during training or after"
    ),
    "watch": Command("run", "commands.watch", "show a live table of a run's ranks"),
    "doctor": Command(
        "inspect", "commands.doctor.command", "check this machine, its packages and the host"
    ),
    "inspect-data": Command(
        "inspect",
        "commands.inspect_data.command",
        "show a dataset or a job's data and statistics; draft a config",
    ),
    "prepare-data": Command(
        "inspect",
        "commands.prepare_data.command",
        "write an RLDS dataset with images at the training size",
    ),
    "ckpt": Command("inspect", "commands.ckpt.command", "show, convert or export checkpoints"),
    "plot": Command(
        "inspect", "commands.plot", "draw loss, learning rate and speed of training runs"
    ),
    "bench": Command(
        "measure",
        "commands.bench.command",
        "measure how a config's training scales with ranks",
    ),
}


def _module(name: str) -> Any:
    return importlib.import_module(f"robomimic_ddp.{COMMANDS[name].module}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 refused or failed, 2 wrong usage."""
    argv = list(sys.argv[1:] if argv is None else argv)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # closed, as `>&-` does
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # here, where its errors are handled, and not when Python exits
    except BrokenPipeError:  # `robomimic-ddp diff | head`
        _discard_stdout()
        return EXIT_DONE
    except RobomimicDDPError as error:
        if not (error.everywhere and _rank() > 0):
            say(f"robomimic-ddp: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_REFUSED
    except (Exception, KeyboardInterrupt) as error:
        if _was_interrupted(error):
            print_clean("robomimic-ddp: interrupted", file=sys.stderr)
            return EXIT_INTERRUPTED
        if isinstance(error, ModuleNotFoundError) and error.name in _TRAINING_PACKAGES:
            message = (
                f"this command needs {error.name}, which {sys.executable} does not have. Activate "
                "the environment in which the host trains, with robomimic-ddp installed there, "
                "then run the command again."
            )
        elif isinstance(error, OSError) and argv[:1] != ["run"]:
            message = _os_error_text(error)
        else:
            raise
        say(f"robomimic-ddp: {message}", file=sys.stderr)
        return EXIT_REFUSED


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused it: libcst then raises a KeyError whose text is a whole file."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _os_error_text(error: OSError) -> str:
    """Return the message, and discard what stdout still has if the error is of stdout."""
    what = error.filename
    if what is None:
        if traceback.extract_tb(error.__traceback__)[-1].name not in ("main", "print_clean"):
            return str(error)
        what = "the output"
        _discard_stdout()
    return (
        f"{what} cannot be used: {error.strerror}. Free disk space, or name a path that you may "
        "read and write, then run it again."
    )


def _discard_stdout() -> None:
    """Keep Python's exit from failing with what could not be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    parser = _parser(next((word for word in argv if not word.startswith("-")), ""))
    if not argv:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    args = parser.parse_args(argv)
    from robomimic_ddp.config import env

    env.defer_tensorflow()
    if args.command == "run":
        from robomimic_ddp.data.rlds.tf_import import keep_triton_first

        keep_triton_first()  # train.py of DROID's hosts imports TensorFlow before torchvision
    elif isinstance(sys.stdout, io.TextIOWrapper):
        # Paths may have characters that cannot be encoded.
        sys.stdout.reconfigure(errors="backslashreplace")
    with _ranks_import_path() if _reads_host(args) else contextlib.nullcontext():
        return _module(args.command).run(args.command, args)


def _reads_host(args: argparse.Namespace) -> bool:
    """Return whether the command imports the host as ranks do. Others are used in folders with
    files of others, where `import torch` could find a torch.py.
    """
    if args.command == "run" or COMMANDS[args.command].group == "patch":
        return False
    if args.command == "inspect-data":
        return args.config is not None
    of_files = ("ckpt", "plot", "prepare-data", "watch")
    return args.command not in of_files and getattr(args, "action", "") != "show"


@contextlib.contextmanager
def _ranks_import_path() -> Iterator[None]:
    """Put the current folder first in sys.path, as `python -m` does and a console script does not,
    so that the command reads the host that the ranks will import.
    """
    if getattr(sys.flags, "safe_path", False) or sys.path[:1] == [""]:
        yield
        return
    with swapped(sys, "path", ["", *sys.path]):
        yield


def _rank() -> int:
    """Return the rank in `torchrun -m robomimic_ddp run`; 0 if its variables are invalid."""
    from robomimic_ddp.config import launch_env

    try:
        return launch_env.read_launch_env().rank
    except RobomimicDDPError:
        return 0


def _parser(subcommand: str) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of this subcommand only: others take time to import."""
    parser = _Parser(
        prog="robomimic-ddp",
        description="Retrofit a robomimic-style codebase to train on several GPUs under torchrun.",
        epilog="\n".join(_help_lines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"robomimic-ddp {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, description=f"{command.summary}.")
        if name == subcommand:
            _module(name).add_arguments(subparser, name)
    return parser


def _help_lines() -> Iterator[str]:
    """Yield the commands, group by group."""
    for group, names in itertools.groupby(COMMANDS, lambda name: COMMANDS[name].group):
        yield f"{group}:"
        yield from (f"  {name:<14}{COMMANDS[name].summary}" for name in names)
        yield ""
    yield "robomimic-ddp COMMAND --help describes a command."
