"""The arguments of the commands that edit hosts. A test freezes them."""

from __future__ import annotations

import argparse

_PATH_HELP = (
    "the host: a repository, or its package folder (default: the robomimic that Python imports)"
)
_FIXER_HELP = "a fixer or a seam as `status` lists them; may be repeated"


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `command` on its own parser."""
    if command == "run":
        _add_program(parser)
    else:
        parser.add_argument("path", nargs="?", metavar="PATH", help=_PATH_HELP)
    if command == "revert":
        parser.add_argument(
            "--force",
            action="store_true",
            help="revert files that were edited since too, keeping a copy of each (FILE.edited)",
        )
        return
    for word, help_text in (
        ("only", "run nothing but FIXER"),
        ("with", "run FIXER too, which is off by default"),
        ("without", "leave FIXER out"),
    ):
        listed = {"action": "append", "default": [], "metavar": "FIXER", "dest": f"{word}_fixers"}
        parser.add_argument(f"--{word}", **listed, help=f"{help_text}: {_FIXER_HELP}")
    if command == "status":
        parser.add_argument("--json", action="store_true", help="print everything as JSON")
    if command == "apply":
        parser.add_argument(
            "--dry-run", action="store_true", help="say what would be done; write nothing"
        )
        parser.add_argument(
            "--check", action="store_true", help="exit 1 unless all is applied; write nothing"
        )


def _add_program(parser: argparse.ArgumentParser) -> None:
    is_module = "PROGRAM is a module even if a file is so named"
    parser.add_argument("-m", dest="module", action="store_true", help=is_module)
    parser.add_argument("--host", metavar="PATH", help=_PATH_HELP)
    parser.add_argument(
        "program", metavar="PROGRAM", help="a module (robomimic.scripts.train), or a file (*.py)"
    )
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )
