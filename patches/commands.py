"""`robomimic-ddp status|diff|apply|revert [PATH]` and `run`: what each prints and returns.

The engine (and LibCST with it) is imported when a command runs, not when its help is shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, PatchError
from robomimic_ddp.terminal import say, width

if TYPE_CHECKING:
    from robomimic_ddp.patches.host.hosts import Host
    from robomimic_ddp.patches.outcomes import Examination

_PATH_HELP = (
    "the host: a repository, or its package folder (default: the robomimic that Python imports)"
)
_EDIT_HELP = "an edit, or an area with all its edits, as `status` lists them; may be repeated"


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `command` on its own parser. A test freezes them."""
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
        ("only", "make nothing but EDIT"),
        ("with", "make EDIT too, which is off by default"),
        ("without", "leave EDIT out"),
    ):
        listed = {"action": "append", "default": [], "metavar": "EDIT", "dest": f"{word}_fixers"}
        parser.add_argument(f"--{word}", **listed, help=f"{help_text}: {_EDIT_HELP}")
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


def run(command: str, args: argparse.Namespace) -> int:
    """Runs `command`; returns the exit code. Raises RobomimicDDPError."""
    if command == "run":
        from robomimic_ddp.patches.running import run_edited

        return run_edited(args)
    return {"status": _status, "diff": _diff, "apply": _apply, "revert": _revert}[command](args)


def _examine(args: argparse.Namespace) -> tuple[Examination, list]:
    from robomimic_ddp.patches import engine, registry
    from robomimic_ddp.patches.host import hosts

    fixers = registry.select(args.only_fixers, args.with_fixers, args.without_fixers)
    return engine.examine(hosts.find_host(args.path), fixers), fixers


def _status(args: argparse.Namespace) -> int:
    from robomimic_ddp.patches import changes, manifest, report

    examination, _ = _examine(args)
    changes.clean(examination.host)
    entries = manifest.load(examination.host.package)
    if args.json:
        print(report.as_json(examination, entries, _uncommitted(examination.host)))
        return EXIT_REFUSED if examination.blocked else EXIT_DONE
    print(f"host: {examination.host.package}\n\n{_table(examination)}\n")
    if examination.blocked:
        say(f"{report.problems(examination)}\n")
    say(_sentence(examination))
    _tell_of_uncommitted(examination.host)
    if entries:
        done = ", ".join(_counted({name: entry.original for name, entry in entries.items()}))
        say(f"recorded in {manifest.NAME}: {done}; robomimic-ddp revert gives all back.")
    return EXIT_REFUSED if examination.blocked else EXIT_DONE


def _table(examination: Examination, fresh: Collection[tuple[str, str]] = ()) -> str:
    from robomimic_ddp.patches import report

    return report.table(examination, fresh, width())


def _sentence(examination: Examination) -> str:
    meanings = {
        "already distributed": "robomimic-ddp does not patch over this host.",
        "blocked": "apply would write nothing until the problems above are solved.",
        "patched": "all that was found is in place.",
    }
    edits = " and ".join(_counted(_originals(examination), "edit {}", "add {}"))
    return f"{examination.state}: {meanings.get(examination.state, f'apply would {edits}.')}"


def _originals(examination: Examination) -> dict[str, bytes | None]:
    return {patch.path: patch.before for patch in examination.patches}


def _counted(
    originals: Mapping[str, bytes | None], edited: str = "{} edited", added: str = "{} added"
) -> list[str]:
    """How many files of the host are edited, and which are added. originals: path -> the host's
    bytes, None for an added file.
    """
    names = [name for name, before in originals.items() if before is None]
    count = len(originals) - len(names)
    edits = [edited.format(_files(count))] if count or not names else []
    return [*edits, *(added.format(name) for name in names)]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _uncommitted(host: Host) -> list[str] | None:
    """Files with changes that are not committed, ours left out."""
    from robomimic_ddp.patches import manifest
    from robomimic_ddp.patches.host import git_tree

    ours = (*manifest.load(host.package), manifest.NAME)
    return git_tree.uncommitted(host.root, frozenset(host.package / name for name in ours))


def _tell_of_uncommitted(host: Host) -> None:
    changed = _uncommitted(host)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        say(
            f"note: {host.root} has changes of yours that are not committed "
            f"({', '.join(changed[:3])}{more}); git diff shows them and our lines together."
        )


def _refuse(examination: Examination) -> int:
    from robomimic_ddp.patches import report

    problems = report.problems(examination)
    say(f"robomimic-ddp: {problems}\nNothing was written.", file=sys.stderr)
    return EXIT_REFUSED


def _diff(args: argparse.Namespace) -> int:
    from robomimic_ddp.patches import diff

    examination, _ = _examine(args)
    if examination.blocked:
        return _refuse(examination)
    if not examination.patches:
        say(_sentence(examination), file=sys.stderr)  # stdout is for git apply
    sys.stdout.flush()
    sys.stdout.buffer.write(diff.unified_diff(examination))
    sys.stdout.buffer.flush()
    return EXIT_DONE


def _apply(args: argparse.Namespace) -> int:
    from robomimic_ddp.patches import changes, engine
    from robomimic_ddp.patches.outcomes import Applied

    examination, fixers = _examine(args)
    if examination.blocked:
        return _refuse(examination)
    package = examination.host.package
    if not (args.check or args.dry_run):
        changes.clean(examination.host)
        if not examination.patches:
            try:  # the record learns of lines of ours that the user has added or removed
                changes.apply(examination)
            except PatchError as error:
                say(f"note: the record of the edits stays as it is: {error}")
    if not examination.patches:
        say(f"{package}: everything is in place already; nothing was written.")
        return EXIT_DONE
    if args.check or args.dry_run:
        print(f"host: {package}\n\n{_table(examination)}\n")
        say(_sentence(examination))
        _tell_of_uncommitted(examination.host)
        return EXIT_REFUSED if args.check else EXIT_DONE
    after = engine.confirm(examination, fixers)
    _tell_of_uncommitted(examination.host)
    changes.apply(examination)
    fresh = {(f.fixer.name, f.path) for f in examination.findings if isinstance(f.outcome, Applied)}
    print(f"host: {package}\n\n{_table(after, fresh)}\n")
    done = ", ".join(_counted(_originals(examination)))
    in_git = _uncommitted(examination.host) is not None
    see = "See the lines with git diff; take" if in_git else "Take"
    say(f"{done}. {see} them back with robomimic-ddp revert.")
    return EXIT_DONE


def _revert(args: argparse.Namespace) -> int:
    from robomimic_ddp.patches import changes, manifest
    from robomimic_ddp.patches.host import hosts

    host = hosts.find_host(args.path)
    changes.clean(host)
    known = (host.package / manifest.NAME).exists()
    done = manifest.revert(host, args.force)
    for name in done.restored:
        print(f"restored {host.package / name}")
    for name in done.removed:
        print(f"removed  {host.package / name}")
    for name, copy in done.copies:
        say(f"kept your version of {host.package / name} as {copy}")
    if not known:
        say(
            f"{host.package}: nothing to do, there is no record of an apply here ({manifest.NAME})."
        )
    elif not (done.restored or done.removed):
        say(f"{host.package}: every file is as it was before apply; the record was removed.")
    return EXIT_DONE
