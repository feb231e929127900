"""`robomimic-ddp run MODULE-or-FILE ARGUMENTS`: a program of the host's, edited in memory."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from robomimic_ddp.errors import EXIT_DONE, PatchError, UsageError


def run_edited(args: argparse.Namespace) -> int:
    """Puts the edits in force and runs the program as `__main__`, in this process."""
    from robomimic_ddp.patches import engine, import_hook, registry, report

    file = _file(args)
    folder = str(file.parent) if file else ""
    if sys.path[:1] != [folder]:  # as `python FILE` and `python -m MODULE` have it
        sys.path.insert(0, folder)
    host = _host(args.host, file)
    fixers = registry.select(args.with_fixers, args.without_fixers)
    examination = engine.examine(host, fixers)
    if examination.blocked:
        raise PatchError(
            f"{report.problems(examination)}\nNothing was run: on several ranks the program would "
            "train wrongly."
        ).on_all_ranks()
    if examination.base is not None:
        import_hook.install(examination.base)
    finder = import_hook.install(examination)
    if file is not None:
        _run_file(file, finder, args.arguments)
    else:
        _run_module(args.program, args.arguments)
    return EXIT_DONE


def _file(args: argparse.Namespace) -> Path | None:
    """Return the program's file, absolute, or None if it is a module."""
    path = Path(args.program)
    if not (path.suffix == ".py" or path.exists()):
        return None
    if not path.is_file():
        raise UsageError(f"{args.program}: there is no such file.").on_all_ranks()
    return path.absolute()


def _host(path: str | None, file: Path | None):
    """The host that imports will come from: that of --host, or the importable one; a train script
    outside packages is a host by itself, built on that one.
    """
    from robomimic_ddp.patches.host import hosts, lone_scripts

    script = lone_scripts.script_host(file.resolve()) if file else None
    if path is not None:
        host = hosts.find_host(path)
        sys.path.insert(0, str(host.package.parent))
        return script or host
    if script is not None:
        return script
    folders = file.resolve().parents if file else ()
    package = next((up for up in folders if hosts.is_package(up)), None)
    host = hosts.find_host(None)
    if package is not None and package != host.package:
        raise UsageError(
            f"{file} belongs to the host in {package}, but `import robomimic` finds the one in "
            f"{host.package}. Say which one to edit and import, such as --host {package}"
        ).on_all_ranks()
    return host


def _run_module(name: str, arguments: list[str]) -> None:
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__")
    get_code = getattr(spec and spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code else None
    if code is None:
        raise UsageError(
            f"{name} is neither a file nor a module that Python can run. Give a module "
            "(robomimic.scripts.train) or a file (path/to/train.py)."
        ).on_all_ranks()
    main = _new_main(spec.origin, arguments)
    main.__spec__, main.__package__, main.__loader__ = spec, spec.parent, spec.loader
    exec(code, main.__dict__)


def _spec(name: str) -> ModuleSpec | None:
    if name.startswith("."):  # relative to no package
        return None
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None)
        if missing and not f"{name}.".startswith(f"{missing}."):
            raise  # a package on the way could not import something else: the user must see it
        return None


def _run_file(file: Path, finder, arguments: list[str]) -> None:
    loader = finder.loader(file)
    if loader:
        code = loader.get_code()
    else:
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    exec(code, _new_main(str(file), arguments).__dict__)


def _new_main(file: str, arguments: list[str]) -> ModuleType:
    """Return a fresh `__main__`, for good: what is pickled or looked up there is found until the
    end.
    """
    main = ModuleType("__main__")
    main.__file__ = file
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [file, *arguments]
    return main
