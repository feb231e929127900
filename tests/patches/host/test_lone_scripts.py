"""Train scripts outside packages: found by file and by folder, over an installed robomimic."""

from __future__ import annotations

import pytest

from robomimic_ddp.errors import UsageError
from robomimic_ddp.patches import engine, registry
from robomimic_ddp.patches.host.lone_scripts import find_host, script_host
from tests.isaac_host import PLACE, SCRIPT, write_checkout
from tests.patches.support import snapshot, write_host


@pytest.fixture
def checkout(tmp_path):
    write_checkout(tmp_path / "checkout")
    return tmp_path / "checkout"


def test_a_script_is_found_by_its_file_and_by_a_folder_around_it(checkout):
    script = checkout / PLACE
    for path in (script, script.parent, checkout):
        host = find_host(str(path))
        assert (host.package, host.scripts, host.name) == (script.parent, ("train.py",), "train.py")


def test_a_package_below_a_folder_comes_first(checkout, tmp_path):
    package = write_host(checkout)
    assert find_host(str(checkout)).package == package
    assert script_host(package / "scripts/train.py") is None
    assert find_host(str(checkout / PLACE)).scripts == ("train.py",)


def test_scripts_of_one_folder_are_one_host(checkout):
    (checkout / PLACE).with_name("train_again.py").write_text(SCRIPT)
    assert find_host(str(checkout)).scripts == ("train.py", "train_again.py")


def test_revert_of_one_script_leaves_the_others_of_its_folder(checkout, installed, command):
    first = checkout / PLACE
    second = first.with_name("train_again.py")
    second.write_text(SCRIPT)
    before = snapshot(checkout)
    assert command("apply", checkout)[0] == 0
    edited = second.read_bytes()
    assert command("revert", first)[0] == 0
    assert (first.read_text(), second.read_bytes()) == (SCRIPT, edited)
    code, out, _ = command("revert", first)
    assert code == 0 and "train.py is as it was before apply" in " ".join(out.split())
    first.write_bytes(edited)  # by git, say
    code, _, err = command("revert", first)
    assert code == 1 and "no record of the original files" in " ".join(err.split())
    first.write_text(SCRIPT)
    assert "1 file edited" in command("status", second)[1]
    assert command("revert", second)[0] == 0
    assert snapshot(checkout) == before


@pytest.mark.bad_input
@pytest.mark.timeout(20)
def test_empty_lines_take_no_time(checkout):
    (checkout / PLACE).with_name("long.py").write_text("\n" * 60_000)
    assert find_host(str(checkout)).scripts == ("train.py",)


@pytest.mark.bad_input
def test_scripts_in_several_folders_are_listed(checkout):
    (checkout / "old").mkdir()
    (checkout / "old/train.py").write_text(SCRIPT)
    with pytest.raises(UsageError, match="several folders; give one of them") as caught:
        find_host(str(checkout))
    assert str(checkout / PLACE) in str(caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "text",
    ["import robomimic\n", "def run_epoch(model):\n    import robomimic\n", "run_epoch(1)\n"],
)
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "tool.py").write_text(text)
    with pytest.raises(UsageError, match="is a file; give the folder of the repository, or a"):
        find_host(str(tmp_path / "tool.py"))


@pytest.mark.bad_input
def test_run_takes_no_script_as_its_host(checkout, command):
    code, _, error = command("run", "--host", str(checkout / PLACE), str(checkout / PLACE))
    assert code == 2 and "is a file; give the folder of the repository." in error


def test_only_the_edits_of_train_scripts_are_looked_for(checkout, installed):
    fixers = registry.select()
    examination = engine.examine(find_host(str(checkout)), fixers)
    assert not examination.blocked, examination.problems
    assert {finding.fixer.files for finding in examination.findings} == {("scripts/train*.py",)}
    (patch,) = examination.patches
    for line in ("DDPUtils.begin_run(TrainUtils.get_exp_dir)(config)", "@DDPUtils.once\ndef scale"):
        assert line in patch.after.decode()
    head = patch.after.decode().partition("import torch")[0]
    assert head.index("AppLauncher(headless=True, distributed=True)") < head.index("robomimic_ddp")
    assert engine.confirm(examination, fixers).state == "patched"


def test_status_shows_what_users_of_an_edit_must_know(checkout, installed, command):
    assert "one starts on each rank, on its GPU" in " ".join(command("status", checkout)[1].split())
