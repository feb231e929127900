"""`robomimic-ddp status|diff|apply|revert [PATH]` and `run`: what each prints and returns.

The engine (and LibCST with it) is imported when a command runs, not when its help is shown.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED
from robomimic_ddp.patches import record, report
from robomimic_ddp.patches.host import lone_scripts
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import Applied, Examination
from robomimic_ddp.terminal import announce, print_clean, say, width

_PATH_HELP = (
    "the host: a repository, its package folder, or a train script over an installed robomimic "
    "(default: the robomimic that Python imports)"
)
_HOST_HELP = (
    "the host to import: a repository or its package folder (default: the robomimic that Python "
    "imports)"
)
_EDIT_HELP = "an edit, or an area with all its edits, as `status` lists them; may be repeated"


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `command` on its own parser. A test freezes them."""
    if command == "run":
        _add_program(parser)
    else:
        parser.add_argument("path", nargs="?", metavar="PATH", help=_PATH_HELP)
    add = parser.add_argument
    if command == "revert":
        what = "also revert files edited after apply, keeping a copy of each (FILE.edited)"
        add("--force", action="store_true", help=what)
        return
    for word, what in (
        ("with", "make EDIT too, which is off by default"),
        ("without", "leave EDIT out"),
    ):
        listed = {"action": "append", "default": [], "metavar": "EDIT", "dest": f"{word}_fixers"}
        add(f"--{word}", **listed, help=f"{what}: {_EDIT_HELP}")
    if command == "apply":
        add("--check", action="store_true", help="exit 1 unless all is applied; write nothing")


def _add_program(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", metavar="PATH", help=_HOST_HELP)
    what = "a module (robomimic.scripts.train), or a file (*.py)"
    add("program", metavar="PROGRAM", help=what)
    what = "the program's own arguments"
    add("arguments", metavar="...", nargs=argparse.REMAINDER, help=what)


def run(command: str, args: argparse.Namespace) -> int:
    """Run `command`; return the exit code. Raises RobomimicDDPError."""
    if command == "run":
        from robomimic_ddp.patches.run_in_memory import run_edited

        return run_edited(args)
    return {"status": _status, "diff": _diff, "apply": _apply, "revert": _revert}[command](args)


def _examine(host: Host, args: argparse.Namespace) -> tuple[Examination, list]:
    from robomimic_ddp.patches import engine, registry

    fixers = registry.select(args.with_fixers, args.without_fixers)
    announce(f"reading {host.package}")
    return engine.examine(host, fixers), fixers


def _status(args: argparse.Namespace) -> int:
    host = lone_scripts.find_host(args.path)
    examination, _ = _examine(host, args)
    record.clean(host)
    entries = record.load(host.package)
    _print_table(examination)
    if examination.blocked:
        say(f"{report.problems(examination)}\n")
    say(_sentence(examination))
    _print_base(examination)
    if entries:
        files = _counted({name: entry.original for name, entry in entries.items()})
        edited = record.edited_since(host, entries)
        gives = "robomimic-ddp revert restores the originals."
        if edited:
            gives = (
                f"edited by hand since: {', '.join(edited)}. robomimic-ddp revert refuses to lose "
                "that; with --force it keeps a copy of your version (FILE.edited)."
            )
        say(f"recorded in {record.NAME}: {files}; {gives}")
    return EXIT_REFUSED if examination.blocked else EXIT_DONE


def _diff(args: argparse.Namespace) -> int:
    examination, _ = _examine(lone_scripts.find_host(args.path), args)
    if examination.blocked:
        return _refuse(examination)
    if not examination.patches:
        say(_sentence(examination), file=sys.stderr)  # stdout is for git apply
    diff = report.unified_diff(examination)
    if width() is not None:
        print_clean(diff.decode(errors="replace").removesuffix("\n"))
        return EXIT_DONE
    sys.stdout.flush()
    sys.stdout.buffer.write(diff)
    sys.stdout.buffer.flush()
    return EXIT_DONE


def _apply(args: argparse.Namespace) -> int:
    from robomimic_ddp.patches import engine

    host = lone_scripts.find_host(args.path)
    examination, fixers = _examine(host, args)
    if examination.blocked:
        return _refuse(examination)
    if not args.check:
        record.clean(host)
    if not examination.patches:
        if not args.check:
            record.apply(examination)  # the user may have added or removed lines of ours
        say(f"{host.package}: everything is in place already; nothing was written.")
        for note in report.left_alone(examination):
            say(f"note: {note}")
        _print_base(examination)
        return EXIT_REFUSED if args.check and _edits_base(examination) else EXIT_DONE
    if args.check:
        _print_table(examination)
        say(_sentence(examination))
        _print_base(examination)
        return EXIT_REFUSED
    after = engine.confirm(examination, fixers)
    fresh = {(f.fixer.name, f.path) for f in examination.findings if isinstance(f.outcome, Applied)}
    path = "" if args.path is None else f" {shlex.quote(args.path)}"
    originals = _originals(examination)
    what = "them" if len(originals) > 1 else "it"
    record.apply(examination)
    table = report.table(after, fresh, width(), absent=False)
    print_clean(f"host: {host.package}\n\n{table}\n")
    say(
        f"{_counted(originals)}. Take {what} back with `robomimic-ddp revert{path}`; "
        f"`robomimic-ddp status{path}` also lists what this host does not have."
    )
    if host.is_installed:
        say(
            "note: these are the files of an installed package, for every program that imports "
            "it; `robomimic-ddp run` edits in memory only"
        )
    _print_base(examination)
    return EXIT_DONE


def _revert(args: argparse.Namespace) -> int:
    host = lone_scripts.find_host(args.path)
    record.clean(host)
    is_recorded = (host.package / record.NAME).exists()
    is_script = args.path is not None and Path(args.path).expanduser().is_file()
    reverted = record.revert(host, args.force, only=host.scripts if is_script else None)
    for name in reverted.restored:
        print_clean(f"restored {host.package / name}")
    for name in reverted.removed:
        print_clean(f"removed  {host.package / name}")
    for name, copy in reverted.copies:
        say(f"kept your version of {host.package / name} as {copy}")
    if not is_recorded:
        say(f"{host.package}: nothing to do, there is no record of an apply here ({record.NAME}).")
    elif not (reverted.restored or reverted.removed):
        state = "every file is as it was before apply; the record was removed"
        say(f"{host.package}: {f'{host.name} is as it was before apply' if is_script else state}.")
    return EXIT_DONE


def _refuse(examination: Examination) -> int:
    problems = report.problems(examination)
    say(f"robomimic-ddp: {problems}\nNothing was written.", file=sys.stderr)
    return EXIT_REFUSED


def _print_table(examination: Examination) -> None:
    table = report.table(examination, width=width())
    print_clean(f"host: {examination.host.package}\n\n{table}\n")


def _sentence(examination: Examination) -> str:
    meanings = {
        "already distributed": "robomimic-ddp does not patch over this host.",
        "blocked": "apply would write nothing until the problems above are solved.",
        "patched": "every edit is in place.",
    }
    edits = " and ".join(_numbers(_originals(examination), "edit {}", "add {}"))
    return f"{examination.state}: {meanings.get(examination.state, f'apply would {edits}.')}"


def _edits_base(examination: Examination) -> bool:
    return examination.base is not None and bool(examination.base.patches)


def _print_base(examination: Examination) -> None:
    """Say which robomimic the package is built on, and whether it is edited."""
    base = examination.base
    if base is None:
        return
    text = f"{examination.host.name} is built on the robomimic in {base.host.package}"
    if not base.patches:
        say(f"{text}, which is patched.")
        return
    say(
        f"{text}, whose edits are separate, and {len(base.patches)} of its files lack them. Edit "
        f"it, too: robomimic-ddp apply {base.host.package}; or train with robomimic-ddp run, which "
        "edits both in memory."
    )


def _originals(examination: Examination) -> dict[str, bytes | None]:
    return {patch.path: patch.before for patch in examination.patches}


def _counted(originals: Mapping[str, bytes | None]) -> str:
    return ", ".join(_numbers(originals, "{} edited", "{} added"))


def _numbers(originals: Mapping[str, bytes | None], edited: str, added: str) -> list[str]:
    """Return how many files of the host are edited, and which are added. originals: path -> the
    host's bytes, None for an added file.
    """
    names = [name for name, before in originals.items() if before is None]
    count = len(originals) - len(names)
    files = "1 file" if count == 1 else f"{count} files"
    return [edited.format(files)] * bool(count or not names) + [added.format(n) for n in names]
