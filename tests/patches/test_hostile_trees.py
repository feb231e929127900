"""Checkouts as they are found: links, lost records, files nobody may write."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from robomimic_ddp.patches import record
from tests.patches.support import CHECKOUT, git, snapshot

EDITED = "utils/torch_utils.py"


def test_our_patch_goes_in_and_out_with_git(checkout, command):
    """Without our record of it."""
    before = snapshot(checkout)
    patch = checkout.parent / "x.patch"
    patch.write_text(command("diff", checkout)[1])
    git(checkout, "apply", str(patch))
    code, out, err = command("revert", checkout)
    assert (code, out, err.count("\n")) == (1, "", 1) and "Nothing was written" in err
    assert record.NAME in err and "git apply -R" in err and EDITED in err
    git(checkout, "apply", "-R", str(patch))
    assert snapshot(checkout) == before


def test_a_script_that_is_a_link_is_one_place(checkout, command):
    """Patched through its name in the package; status says that of no other name."""
    (checkout / "robomimic/scripts/train_again.py").symlink_to("train.py")
    (checkout / "robomimic/scripts/train_gone.py").symlink_to("nowhere.py")
    (checkout / "examples").mkdir()
    shutil.copy(checkout / "robomimic/scripts/train.py", checkout / "examples/train_far.py")
    for name in ("train_far.py", "train_near.py"):
        (checkout / "robomimic/scripts" / name).symlink_to("../../examples/train_far.py")
    before = snapshot(checkout)
    assert command("apply", checkout)[0] == 0
    code, out, _ = command("status", checkout)
    assert code == 0 and "would train on one rank" not in out
    assert "scripts/train_far.py" in out and "train_near.py" not in out
    for file in ("examples/train_far.py", "robomimic/scripts/train.py"):
        assert (checkout / file).read_text().count("@DDPUtils.distributed") == 1
    assert command("apply", "--check", checkout)[0] == 0
    assert command("revert", checkout)[0] == 0
    assert snapshot(checkout) == before


def test_a_linked_folder_inside_the_host(checkout, command):
    package = checkout / "robomimic"
    shutil.move(package / "scripts", checkout / "programs")
    (package / "scripts").symlink_to("../programs")
    before = snapshot(checkout)
    patch = checkout.parent / "x.patch"
    patch.write_text(command("diff", checkout)[1])
    assert "a/programs/train.py" in patch.read_text()
    git(checkout, "apply", "--check", str(patch))
    assert command("apply", checkout)[0] == 0
    assert "@DDPUtils.distributed" in (checkout / "programs/train.py").read_text()
    assert "programs" not in command("status", checkout)[1]
    assert command("revert", checkout)[0] == 0
    assert snapshot(checkout) == before
    assert (package / "scripts").is_symlink()


def test_a_file_whose_name_is_no_text(checkout, command):
    name = os.fsdecode(b"train_\xff.py")
    try:
        shutil.copy(checkout / "robomimic/scripts/train.py", checkout / "robomimic/scripts" / name)
    except OSError:
        pytest.skip("this file system takes names of text only")
    before = snapshot(checkout)
    patch = checkout.parent / "x.patch"
    with patch.open("wb") as file:
        subprocess.run(
            [sys.executable, "-m", "robomimic_ddp", "diff", str(checkout)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=file,
            check=True,
        )
    assert b"robomimic/scripts/train_\xff.py" in patch.read_bytes()
    git(checkout, "apply", "--check", str(patch))
    for words in (["status"], ["apply"], ["apply", "--check"], ["revert"]):
        code, out, err = command(*words, checkout)
        assert (code, err) == (0, ""), words
    assert "train_\\udcff.py" in out
    assert snapshot(checkout) == before


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["apply", "diff"])
def test_a_link_out_of_the_host_is_refused(host, tmp_path, command, name):
    elsewhere = tmp_path / "other_project.py"
    shutil.move(host / EDITED, elsewhere)
    (host / EDITED).symlink_to(elsewhere)
    before = elsewhere.read_bytes(), snapshot(host)
    code, out, err = command(name, host)
    assert (code, out) == (1, "")
    assert str(elsewhere) in err and "outside this host" in err
    assert (elsewhere.read_bytes(), snapshot(host)) == before


@pytest.mark.bad_input
@pytest.mark.parametrize("is_there", [True, False])
def test_a_record_that_is_a_link_is_not_written_through(host, tmp_path, command, is_there):
    elsewhere = tmp_path / "settings.json"
    if is_there:
        command("apply", host)
        shutil.move(host / record.NAME, elsewhere)
    (host / record.NAME).symlink_to(elsewhere)
    before = snapshot(host)
    for name in ("apply", "revert"):
        command(name, host)
        assert elsewhere.exists() == is_there and snapshot(host) == before
    assert "is a link" in command("status", host)[2]


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["../.git/config", "utils/settings.py"])
def test_a_record_gives_back_no_file_of_git(checkout, command, name):
    package, settings = checkout / "robomimic", checkout / ".git/config"
    (package / "utils/settings.py").symlink_to("../../.git/config")
    command("apply", checkout)
    content = json.loads((package / record.NAME).read_text())
    digest = hashlib.sha256(settings.read_bytes()).hexdigest()
    item = {**content["files"][EDITED], "patched_sha256": digest}
    content["files"][name.removeprefix("../")] = item
    (package / record.NAME).write_text(json.dumps(content))
    if name.startswith("../"):  # the package is the checkout itself
        shutil.move(checkout / ".git", package / ".git")
        settings = package / ".git/config"
    before = settings.read_bytes()
    code, _, err = command("revert", package)
    assert code == 1 and "outside" in err
    assert settings.read_bytes() == before


@pytest.mark.parametrize("name", ["status", "apply", "revert"])
def test_what_a_killed_apply_left_goes(host, command, name):
    remnants = [host / ".robomimic_ddp.json.abcdefgh.tmp", host / "scripts/.train.py.a_c1efgh.tmp"]
    for path in remnants:
        path.write_text("half")
    command("apply", host, "--check")
    assert all(path.exists() for path in remnants), "a dry run writes nothing"
    assert command(name, host)[0] == 0
    assert not any(path.exists() for path in remnants)


def test_a_host_without_a_diffusion_policy_is_patched(host, command):
    (host / "algo/diffusion_policy.py").unlink()
    before = snapshot(host)
    code, out, _ = command("status", host)
    assert code == 0 and "nets of other algorithms need no edit" in out
    assert command("apply", host)[0] == command("apply", host, "--check")[0] == 0
    assert command("revert", host)[0] == 0
    assert snapshot(host) == before


def second_entry(host, imports: str) -> None:
    """A second train script, which takes its helpers by the line `imports`."""
    text = (host / "scripts/train.py").read_text()
    text = text.replace("import robomimic.utils.train_utils as TrainUtils\n", imports)
    loader = "    train_loader ="
    text = text.replace(loader, f"    log_dir = TrainUtils.get_exp_dir(config)\n{loader}")
    (host / "scripts/train_mt.py").write_text(text)


@pytest.mark.parametrize(
    "imports",
    [
        "import robomimic.utils.train_mt_utils as TrainUtils\n",
        "import robomimic.utils.all_utils as TrainUtils\n",
        "from ..utils import train_mt_utils as TrainUtils\n",
    ],
)
def test_a_second_entry_with_helpers_of_its_own(host, command, imports):
    (host / "utils/train_mt_utils.py").write_text((host / "utils/train_utils.py").read_text())
    (host / "utils/all_utils.py").write_text(
        "from .train_mt_utils import get_exp_dir, run_epoch, save_model\n"
    )
    second_entry(host, imports)
    before = snapshot(host)
    assert command("apply", host)[0] == command("apply", host, "--check")[0] == 0
    edited = (host / "utils/train_mt_utils.py").read_text()
    for line in ("@DDPUtils.run_directory\n", "@DDPUtils.epoch_log\n", "DDPUtils.save("):
        assert line in edited
    assert command("revert", host)[0] == 0
    assert snapshot(host) == before


@pytest.mark.bad_input
def test_an_entry_with_helpers_that_cannot_be_patched_is_an_error_with_its_name(host, command):
    second_entry(host, "import lab.helpers as TrainUtils\n")
    before = snapshot(host)
    code, _, err = command("apply", host)
    assert code == 1 and snapshot(host) == before
    assert "scripts/train_mt.py:10: run_directory" in err and "outside the package" in err
    assert command("status", host)[0] == 1
