"""Edits at import time: what is imported, what byte code is left, what tracebacks say."""

from __future__ import annotations

import importlib
import inspect
import linecache
import py_compile
import sys
import traceback
from pathlib import Path

import pytest

from robomimic_ddp.patches import import_hook
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import Examination, FilePatch

PLAIN = "def answer():\n    return 1\n\n\ndef fail():\n    raise ValueError(1)\n"
EDITED = "import math\n\n\ndef answer():\n    return 2\n\n\ndef fail():\n    raise ValueError(2)\n"
ADDED = "def new():\n    raise KeyError(3)\n"
PACKAGE = "hooked_host"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package with an edited module, an unedited one, and a folder that gets a new one."""
    folder = tmp_path / PACKAGE
    (folder / "scripts").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "edited.py").write_text(PLAIN)
    (folder / "other.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def install(folder: Path) -> import_hook.EditingFinder:
    patches = (
        FilePatch("edited.py", PLAIN.encode(), EDITED.encode()),
        FilePatch("scripts/added.py", None, ADDED.encode()),
    )
    return import_hook.install(Examination(Host(folder, folder.parent), (), patches))


def load(name: str):
    return importlib.import_module(f"{PACKAGE}.{name}")


def test_byte_code_of_an_unedited_run_is_not_read(package):
    py_compile.compile(str(package / "edited.py"))
    before = {path: path.read_bytes() for path in package.rglob("*.pyc")}
    assert before
    install(package)
    assert (load("edited").answer(), load("other").answer()) == (2, 1)
    assert load("edited").__file__ == str(package / "edited.py")
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_file_that_the_edits_add_can_be_imported(package):
    with pytest.raises(ModuleNotFoundError):
        load("scripts.added")
    install(package)
    with pytest.raises(KeyError) as caught:
        load("scripts.added").new()
    assert "raise KeyError(3)" in "".join(traceback.format_tb(caught.tb))
    with pytest.raises(ModuleNotFoundError):
        load("scripts.never_added")


def test_tracebacks_and_inspect_show_the_lines_on_disk(package):
    install(package)
    linecache.clearcache()
    with pytest.raises(ValueError) as caught:
        load("edited").fail()
    shown = "".join(traceback.format_tb(caught.tb))
    assert 'edited.py", line 6, in fail\n    raise ValueError(1)' in shown
    assert inspect.getsource(load("edited").answer) == "def answer():\n    return 1\n"


@pytest.mark.planted_fault
def test_a_module_that_was_imported_before_is_named(package):
    load("edited")
    with pytest.warns(RuntimeWarning, match="hooked_host.edited was imported before"):
        install(package)


def test_a_module_of_the_same_name_from_elsewhere_is_left_alone(package, tmp_path):
    other = tmp_path / "elsewhere" / PACKAGE
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "edited.py").write_text(PLAIN)
    install(package)
    sys.path.insert(0, str(other.parent))
    assert load("edited").answer() == 1


def test_an_edited_file_may_be_a_link(package, tmp_path):
    (tmp_path / "common").mkdir()
    (package / "edited.py").rename(tmp_path / "common/edited.py")
    (package / "edited.py").symlink_to("../common/edited.py")
    install(package)
    assert load("edited").answer() == 2
