"""The edits at import time: the host's modules are compiled from edited text; no file is touched.

No byte code is read or written for them, so unedited runs never pick up an edited module.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from robomimic_ddp.patches.outcomes import Examination, FilePatch
from robomimic_ddp.patches.syntax.line_numbers import compile_as


class EditedLoader(SourceFileLoader):
    """Loads one module from the text that a patch makes of its file."""

    def __init__(self, name: str, path: str, patch: FilePatch) -> None:
        super().__init__(name, path)
        self.patch = patch

    def get_code(self, fullname: str = "") -> CodeType:
        """Return the edited code; lines are numbered as in the file on disk."""
        before, after = self.patch.before, self.patch.after
        if before is None:  # there is no file: tracebacks find its lines here
            lines = after.decode().splitlines(keepends=True)
            linecache.cache[self.path] = (len(after), None, lines, self.path)
        return compile_as(after if before is None else before, after, self.path)

    def get_data(self, path: str) -> bytes:
        """Return the edited text for the module's own file, as for `get_source`."""
        return self.patch.after if path == self.path else super().get_data(path)


class EditingFinder(MetaPathFinder):
    """Finds the host's modules where Python would, and gives the edited ones an EditedLoader."""

    def __init__(self, examination: Examination) -> None:
        host = examination.host
        self._name = "" if host.scripts else host.package.name  # nobody imports a script
        # A file may be a link, also to one outside the package.
        self._patches = {(host.package / it.path).resolve(): it for it in examination.patches}
        self._added = {
            host.module(patch.path): host.package / patch.path
            for patch in examination.patches
            if patch.before is None
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._name:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                return self._edited(spec)
        added = self._added.get(fullname)
        folders = [Path(folder).resolve() for folder in path or ()]
        if added is None or added.parent.resolve() not in folders:
            return None
        return self._edited(importlib.util.spec_from_file_location(fullname, added))

    def loader(self, file: Path) -> EditedLoader | None:
        """Return the loader of a file of the host, run as a script; None where it has no edit."""
        patch = self._patches.get(file.resolve())
        return EditedLoader("__main__", str(file), patch) if patch else None

    def _edited(self, spec: ModuleSpec) -> ModuleSpec:
        patch = self._patches.get(Path(spec.origin).resolve()) if spec.has_location else None
        if patch is not None:
            spec.loader = EditedLoader(spec.name, spec.origin, patch)
        return spec


def install(examination: Examination) -> EditingFinder:
    """Edits later imports. Warns (RuntimeWarning) of modules imported before, left unedited."""
    assert not examination.blocked, "a blocked examination must not be put in force"
    host = examination.host
    for patch in examination.patches:
        name = host.module(patch.path)
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve() == (host.package / patch.path).resolve():
            warnings.warn(
                f"{name} was imported before robomimic-ddp could edit it, so its edits have no "
                "effect. Import robomimic only after the edits are in force.",
                RuntimeWarning,
                stacklevel=2,
            )
    finder = EditingFinder(examination)
    sys.meta_path.insert(0, finder)
    return finder
