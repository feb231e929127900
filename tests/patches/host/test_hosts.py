"""Where a host is found, and one clear message where there is none."""

from __future__ import annotations

import sys

import pytest

from robomimic_ddp.errors import UsageError
from robomimic_ddp.patches.host.hosts import READS_RLDS, find_host
from tests.patches.support import CHECKOUT, run_command, snapshot, write_host


@pytest.mark.parametrize("below", ["", "repository", "some/where", "robomimic"])
def test_up_to_three_levels_below_the_path(tmp_path, below):
    package = write_host(tmp_path / below)
    assert find_host(str(tmp_path)).package == package


def test_the_nearest_one_is_taken(tmp_path):
    package = write_host(tmp_path)
    write_host(tmp_path / "third_party" / "copy")
    assert find_host(str(tmp_path)).package == package


@pytest.mark.parametrize("folder", ["build/lib", ".hidden"])
def test_copies_that_are_no_source_are_passed_over(tmp_path, folder):
    write_host(tmp_path / folder)
    package = write_host(tmp_path / "a" / "b")
    assert find_host(str(tmp_path)).package == package


def test_a_virtual_environment_is_passed_over(tmp_path):
    write_host(tmp_path / "environment")
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    with pytest.raises(UsageError, match="no robomimic-style package"):
        find_host(str(tmp_path))


def test_diff_paths_start_at_the_checkouts_root(tmp_path):
    package = write_host(tmp_path / "repository" / "inner")
    assert find_host(str(tmp_path / "repository")).root == tmp_path / "repository"
    assert find_host(str(package)).root == package
    (tmp_path / "repository" / ".git").mkdir()
    assert find_host(str(package)).root == tmp_path / "repository"


def test_the_trait_of_hosts_with_a_reader_of_their_own(host):
    assert READS_RLDS not in find_host(str(host)).traits
    (host / "scripts" / "train.py").write_text("if data_format == 'droid_rlds': pass\n")
    assert READS_RLDS in find_host(str(host)).traits


def test_without_a_path_the_importable_robomimic_is_found_and_not_imported(tmp_path):
    package = write_host(tmp_path / "repository")
    (package / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    done = run_command("status", cwd=tmp_path, paths=(tmp_path / "repository",))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"host: {package}\n")
    assert str(CHECKOUT) not in done.stdout


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["apply", "revert"])
def test_without_a_path_a_checkout_that_python_would_not_import_is_not_passed_over(
    tmp_path, command, monkeypatch, name
):
    """Else `apply` in a checkout would edit the installed package."""
    installed, mine = (write_host(tmp_path / folder) for folder in ("installed", "mine"))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    monkeypatch.syspath_prepend(str(installed.parent))
    before = snapshot(tmp_path)
    for folder in (mine.parent, mine):
        monkeypatch.chdir(folder)
        code, out, err = command(name)
        assert (code, out) == (2, "")
        assert str(installed) in err and str(mine) in err and "Name one of them: PATH" in err
    assert snapshot(tmp_path) == before
    monkeypatch.chdir(installed.parent)
    assert command(name)[0] == 0
