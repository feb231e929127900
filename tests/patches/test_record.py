"""Apply and revert: the record, byte-exact return, and the user's own edits in between."""

from __future__ import annotations

import json
import os

import pytest

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches import record
from robomimic_ddp.patches.host import hosts
from tests.patches.support import append, examine, snapshot, write_host

EDITED = "utils/torch_utils.py"


def apply(host, **selection) -> None:
    record.apply(examine(host, **selection))


def revert(host, force: bool = False) -> record.Reverted:
    return record.revert(hosts.find_host(str(host)), force)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_revert_gives_back_bytes_and_modes(tmp_path, newline):
    host = write_host(tmp_path, newline)
    os.chmod(host / EDITED, 0o755)
    os.chmod(host / "scripts/train.py", 0o600)
    before = snapshot(host)
    apply(host)
    after = snapshot(host)
    assert after[EDITED][1] == 0o755
    assert after["scripts/train.py"][1] == after["scripts/train_rlds.py"][1] == 0o600
    done = revert(host)
    assert snapshot(host) == before
    assert done.removed == ("scripts/train_rlds.py",)
    assert set(done.restored) == {name for name in before if after[name] != before[name]}


def test_revert_twice_and_revert_of_a_plain_host_do_nothing(host):
    before = snapshot(host)
    assert revert(host) == record.Reverted((), (), ())
    apply(host)
    revert(host)
    assert revert(host) == record.Reverted((), (), ())
    assert snapshot(host) == before


def test_applied_in_steps_reverts_to_the_first_bytes(host):
    before = snapshot(host)
    apply(host, only=["cuda_device"])
    apply(host, only=["scale_lr", "train_loader"])
    apply(host)
    revert(host)
    assert snapshot(host) == before


@pytest.mark.parametrize("name", [EDITED, "scripts/train.py"])
def test_apply_refuses_to_overwrite_an_edit_saved_since_it_looked(host, name):
    apply(host, only=["scale_lr"])
    examination = examine(host)
    append(host / name, " ")
    before = snapshot(host)
    with pytest.raises(PatchError, match="another program has saved it since it was read"):
        record.apply(examination)
    assert snapshot(host) == before


def test_force_keeps_a_copy_of_the_users_version(host):
    plain = snapshot(host)
    apply(host)
    append(host / EDITED, "mine = 1\n")
    (host / f"{EDITED}.edited").write_text("an older copy")
    mine = (host / EDITED).read_bytes()
    assert revert(host, force=True).copies == ((EDITED, "torch_utils.py.edited1"),)
    after = snapshot(host)
    assert after.pop(f"{EDITED}.edited1")[0] == mine
    assert after.pop(f"{EDITED}.edited")[0] == b"an older copy"
    assert after == plain


def test_a_patched_file_that_the_user_deleted_counts_as_edited(host):
    plain = snapshot(host)
    apply(host)
    (host / EDITED).unlink()
    with pytest.raises(PatchError, match=EDITED):
        revert(host)
    revert(host, force=True)
    assert snapshot(host) == plain


def test_files_that_git_has_brought_back_are_no_obstacle(host):
    plain = snapshot(host)
    apply(host)
    (host / EDITED).write_bytes(plain[EDITED][0])
    (host / "scripts/train_rlds.py").unlink()
    revert(host)
    assert snapshot(host) == plain


@pytest.mark.planted_fault
def test_an_edit_between_two_applies_is_never_lost(host):
    apply(host, only=["cuda_device"])
    append(host / EDITED, "mine = 1\n")
    apply(host)
    before = snapshot(host)
    assert "mine = 1\n" in (host / EDITED).read_text()
    with pytest.raises(PatchError, match=EDITED):
        revert(host)
    assert snapshot(host) == before
    revert(host, force=True)
    assert "mine" not in (host / EDITED).read_text()
    assert "mine = 1\n" in (host / f"{EDITED}.edited").read_text()


def test_a_newer_upstream_file_becomes_the_new_original(host):
    plain = (host / EDITED).read_bytes()
    apply(host)
    newer = plain + b"upstream = 2\n"
    (host / EDITED).write_bytes(newer)
    apply(host)
    revert(host)
    assert (host / EDITED).read_bytes() == newer


def test_apply_takes_note_of_lines_that_the_user_removed(host, command):
    apply(host)
    path = host / "utils/train_utils.py"
    text = path.read_text().replace('DDPUtils.ask("overwrite? ")', '"y"')
    path.write_text(text.replace("input(", "DDPUtils.ask("))
    code, out, _ = command("apply", host)
    assert code == 0 and "in place already" in out
    files = json.loads((host / record.NAME).read_text())["files"]
    assert "ask" not in files["utils/train_utils.py"]["seams"]
    with pytest.raises(PatchError, match="train_utils.py"):
        revert(host)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: "[]",
        lambda content: json.dumps(
            {**content, "files": {"a.py": {**content["files"][EDITED], "original": "eJw="}}}
        ),
        lambda content: json.dumps(
            {**content, "files": {"a.py": {**content["files"][EDITED], "original_sha256": "0"}}}
        ),
    ],
    ids=["list", "cut off", "wrong hash"],
)
def test_a_damaged_record_is_one_clear_error(host, spoil):
    """More: tests/bad_input/test_cli.py."""
    apply(host)
    path = host / record.NAME
    path.write_text(spoil(json.loads(path.read_text())))
    before = snapshot(host)
    with pytest.raises(PatchError, match="damaged"):
        revert(host)
    assert snapshot(host) == before


def test_the_record_is_the_same_each_time(tmp_path):
    hosts_written = [write_host(tmp_path / name) for name in ("a", "b")]
    for host in hosts_written:
        apply(host)
    first, second = ((host / record.NAME).read_bytes() for host in hosts_written)
    assert first == second
