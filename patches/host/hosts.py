"""Finds the host: the folder of a robomimic-style package, and what is true of the whole of it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.errors import PatchError, UsageError
from robomimic_ddp.patches.syntax.python import imported_names, parsed

TRAIN_SCRIPTS = ("scripts/train*.py",)
MAIN = "scripts/train.py"
"""The script that must be patched; another that cannot be is named and left as it is."""
READS_RLDS = "reads RLDS"
"""Trait: the host has its own reader of RLDS datasets (the DROID family)."""

_SCRIPT = "a script that imports robomimic and calls its run_epoch in a train function"
_PYTHON = ("**/*.py", "*/*.py")
"""`**` enters no folder that is a link."""
_DEPTH = 3
_INSTALLED = {"site-packages", "dist-packages"}
_SKIPPED = {"build", "dist", "node_modules", "__pycache__", *_INSTALLED}


@dataclass(frozen=True)
class Host:
    """A host's package folder (`package`, absolute), and the folder that a diff's paths start
    from. `patched`: files that are read as these bytes, in place of those on disk. `scripts`: where
    `package` is a plain folder, the files in it that train over an installed robomimic.
    """

    package: Path
    root: Path
    patched: Mapping[str, bytes] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The package's name, or the scripts'."""
        return " and ".join(self.scripts) or self.package.name

    @property
    def is_installed(self) -> bool:
        """Whether the package is where pip installs packages, and not in a checkout."""
        return not _INSTALLED.isdisjoint(self.package.parts)

    def files(self, patterns: tuple[str, ...]) -> list[str]:
        """Return the files that match any of the glob `patterns`; both relative to the package. A
        file with several names, by links, is there once.
        """
        if self.scripts:  # nothing else in their folder is the host's
            return list(self.scripts) if {*TRAIN_SCRIPTS, "**/*.py"} & {*patterns} else []
        matches = {path for pattern in patterns for path in self.package.glob(pattern)}
        by_preference = sorted(
            filter(Path.is_file, matches), key=lambda path: (path.is_symlink(), path)
        )
        names = {path.resolve(): path for path in reversed(by_preference)}.values()
        return sorted(path.relative_to(self.package).as_posix() for path in names)

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Path and bytes of every Python file of the package, and of the checkout around it, whose
        paths begin with "../".
        """
        inside = self.files(_PYTHON)
        for path in [*inside, *self._around({(self.package / name).resolve() for name in inside})]:
            yield path, self.read(path) or b""

    def _around(self, inside: set[Path]) -> Iterator[str]:
        if self.scripts or self.is_installed:  # around are other people's files
            return
        for path in python_files(self.root, self.package):
            if path not in inside:
                yield Path(os.path.relpath(path, self.package)).as_posix()

    @cached_property
    def is_built_on_robomimic(self) -> bool:
        """Whether the package is a separate one that imports an installed robomimic: its scripts
        import both. A copy of robomimic under another name imports nothing by that name.
        """
        if self.scripts or self.package.name == "robomimic":
            return bool(self.scripts)
        imported: set[str] = set()
        for path in self.files((*TRAIN_SCRIPTS, "utils/*.py", "algo/*.py")):
            names = imported_names(parsed(self.read(path)), [self.package.name, "folder"])
            imported |= {target.partition(".")[0] for _, target in names}
        return {self.package.name, "robomimic"} <= imported

    @cached_property
    def base(self) -> Host | None:
        """The robomimic that a package which is built on one imports, or None if there is none."""
        if not self.is_built_on_robomimic:
            return None
        try:
            package = _importable()
        except UsageError:
            return None
        return Host(package, git_root(package) or package.parent)

    def module(self, path: str) -> str:
        """Return the name by which a file is imported, such as "robomimic.scripts.train"."""
        parts = path.removesuffix(".py").split("/")
        return ".".join([self.package.name, *(parts[:-1] if parts[-1] == "__init__" else parts)])

    def target(self, path: str) -> Path:
        """Return the file that `path` (relative to the package) is or links to, absolute. Raises
        PatchError outside the host: an edit would change another tree too.
        """
        target = (self.package / path).resolve()
        folders = (folder for folder in (self.root, self.package) if folder in target.parents)
        folder = next(folders, None)
        if folder is None or ".git" in target.relative_to(folder).parts:  # it may name programs
            raise PatchError(
                f"{self.package / path} is a link to {target}, outside this host: an edit would "
                "change whatever else uses that file. Nothing was written. Put a copy in the "
                "link's place, or give the host that the file belongs to."
            )
        return target

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file of the package, or None. Raises PatchError if unreadable."""
        if path in self.patched:
            return self.patched[path]
        try:
            return files.read_bytes(self.package / path)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or error
            raise PatchError(
                f"{self.package / path} cannot be read: {reason}. Nothing was written."
            ) from error

    @cached_property
    def traits(self) -> frozenset[str]:
        """What is true of the whole host, whichever file a fixer looks at."""
        readers = self.files((*TRAIN_SCRIPTS, "utils/file_utils.py"))
        reads = any(b"droid_rlds" in (self.read(path) or b"") for path in readers)
        return frozenset({READS_RLDS} if reads else ())


def find_host(path: str | None, otherwise: Callable[[Path], Host | None] | None = None) -> Host:
    """Return the host at `path`: the package folder, a folder with it up to three levels below, or
    what `otherwise` finds there; without a path the importable robomimic, unless the current folder
    contains another. Raises UsageError.
    """
    if path is None:
        package = _importable()
        _require_no_other_here(package)
        return Host(package, git_root(package) or package.parent)
    if not path:  # `apply "$UNSET"` must not mean the present folder
        raise UsageError("PATH is '' (an unset variable?): there is no such file or folder.")
    place = Path(path).expanduser()
    if not place.exists():
        raise UsageError(f"{path}: there is no such file or folder.")
    place = place.resolve()
    package = _package_below(place, path) if place.is_dir() else None
    if package is not None:
        return Host(package, git_root(package) or place)
    host = otherwise(place) if otherwise is not None else None
    if host is not None:
        return host
    if not place.is_dir():
        script = "" if otherwise is None else f", or {_SCRIPT}"
        raise UsageError(f"{path} is a file; give the folder of the repository{script}.")
    raise _no_package(place, path, "" if otherwise is None else f", and everywhere for {_SCRIPT}")


def is_package(folder: Path) -> bool:
    """Return whether `folder` is the package of a robomimic-style codebase."""
    marks = ("__init__.py", "algo/__init__.py", "utils/train_utils.py")
    return all((folder / mark).is_file() for mark in marks)


def _package_below(start: Path, shown: str) -> Path | None:
    level = [start]
    for _ in range(_DEPTH + 1):
        packages = [folder for folder in level if is_package(folder)]
        if len(packages) == 1:
            return packages[0]
        if packages:
            listed = "\n".join(f"  {folder}" for folder in packages)
            raise UsageError(
                f"{shown} contains several robomimic packages; give one of them:\n{listed}"
            )
        level = [child for folder in level for child in _subfolders(folder)]
    return None


def _no_package(start: Path, shown: str, further: str) -> UsageError:
    hint = next((f" {up} is one: did you mean that?" for up in start.parents if is_package(up)), "")
    return UsageError(
        f"{shown} contains no robomimic-style package: looked {_DEPTH} levels deep for a folder "
        f"with algo/, utils/train_utils.py and __init__.py{further}. robomimic-ddp edits "
        f"robomimic, DROID's policy learning and forks of them.{hint}"
    )


def python_files(root: Path, but: Path | None = None) -> Iterator[Path]:
    """Python files at and below `root`, without those of the folder `but`, of environments and of
    builds.
    """
    for folder, names, written in os.walk(root):
        names[:] = sorted(sub.name for sub in _subfolders(Path(folder)) if sub != but)
        for path in (Path(folder, name) for name in sorted(written) if name.endswith(".py")):
            if path.is_file() and not path.is_symlink():
                yield path


def _subfolders(folder: Path) -> list[Path]:
    try:
        folders = [item for item in folder.iterdir() if item.is_dir() and not item.is_symlink()]
    except OSError:
        return []
    candidates = (
        folder
        for folder in folders
        if folder.name not in _SKIPPED and not folder.name.startswith(".")
    )
    return sorted(folder for folder in candidates if not (folder / "pyvenv.cfg").exists())


def _importable() -> Path:
    try:
        spec = importlib.util.find_spec("robomimic")
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise UsageError(
            f"no robomimic can be imported by {sys.executable} in this folder, and no PATH was "
            "given. Activate the environment of the host, or give the folder of its checkout: "
            "PATH, or run --host PATH."
        )
    folder, shown = Path(places[0]).resolve(), f"the importable robomimic ({places[0]})"
    package = _package_below(folder, shown)
    if package is None:
        raise _no_package(folder, shown)
    return package


def _require_no_other_here(package: Path) -> None:
    """Who stands in a checkout and gives no path means that one, not the one that is installed."""
    here = Path.cwd()
    for folder in (here, here / package.name):
        if is_package(folder) and folder.resolve() != package:
            raise UsageError(
                f"no PATH was given: the current folder contains the host {folder}, and Python "
                f"would import the one in {package}. Name one of them: PATH, or run --host PATH."
            ).on_all_ranks()


def git_root(package: Path) -> Path | None:
    """Return the checkout of the package; `.git` is a folder, or a file in a worktree."""
    folders = (package, *package.parents)
    return next((folder for folder in folders if (folder / ".git").exists()), None)
