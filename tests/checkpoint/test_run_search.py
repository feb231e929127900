"""Which directory a run resumes in: the newest if a user starts it, the job's after a restart."""

from __future__ import annotations

import json
import os

import pytest

from robomimic_ddp.checkpoint import (
    STATE,
    find_job,
    find_run,
    job_name,
    read,
    relative_paths,
)
from robomimic_ddp.config import env
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.errors import CheckpointError


def run(folder, name, job=None, state=True, **record):
    """A run directory with DROID's four paths, one of them None (saving is off)."""
    directory = folder / name
    directory.mkdir(parents=True)
    paths = [directory / "logs", None, directory / "videos", directory]
    content = {"job": job, "paths": relative_paths(directory, paths), **record}
    (directory / "ddp.json").write_text(json.dumps(content))
    if state:
        (directory / STATE).write_bytes(b"")
    return directory, tuple(None if path is None else str(path) for path in paths)


def test_by_hand_the_newest_that_has_a_state(tmp_path):
    run(tmp_path, "20250101000000")
    directory, paths = run(tmp_path, "20250102000000")
    run(tmp_path, "20250103000000", state=False)
    (tmp_path / "20250104000000").mkdir()
    found = find_run(tmp_path, host_resumes=True)
    assert (found.directory, found.kind, found.paths) == (directory, "state", paths)


def test_a_directory_that_was_moved_is_found_with_its_new_paths(tmp_path):
    run(tmp_path / "here", "a")
    os.rename(tmp_path / "here", tmp_path / "there")
    found = find_run(tmp_path / "there", host_resumes=False)
    assert found.paths[0] == str(tmp_path / "there" / "a" / "logs")


def test_a_run_of_the_unedited_host_is_the_hosts_to_resume(tmp_path):
    run(tmp_path, "1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "last.pth").write_bytes(b"")
    assert find_run(tmp_path, host_resumes=True).kind == "host"
    assert find_run(tmp_path, host_resumes=False).directory == tmp_path / "1"


def test_nothing_to_resume_names_the_place(tmp_path):
    with pytest.raises(CheckpointError, match="nothing to resume") as caught:
        find_run(tmp_path, host_resumes=True)
    assert str(tmp_path) in str(caught.value)
    assert "at its first epoch's end." in str(caught.value)  # later ones come by ddp.save_seconds
    (tmp_path / "20261124").mkdir()
    with pytest.raises(CheckpointError, match="epoch's end; 20261124 ended before"):
        find_run(tmp_path, host_resumes=True)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"paths": [1]}', b"\xff"])
def test_resume_finds_a_state_whatever_became_of_ddp_json_and_a_restart_does_not(
    content, tmp_path, capsys
):
    directory, _ = run(tmp_path, "1", job="mine")
    (directory / "last.pth").write_bytes(b"")
    (directory / "ddp.json").unlink()
    if content is not None:
        text = content if isinstance(content, bytes) else content.encode()
        (directory / "ddp.json").write_bytes(text)
    found = find_run(tmp_path, host_resumes=True)
    assert (found.directory, found.kind, found.paths) == (directory, "state", ())
    assert find_job(tmp_path, "mine") is None
    assert capsys.readouterr().err.count(f"warning: {directory / 'ddp.json'} cannot be used") == 2


def test_a_link_that_leads_nowhere_is_a_state(tmp_path):
    directory, paths = run(tmp_path, "1", state=False)
    (directory / "last.pth").write_bytes(b"")
    (directory / STATE).symlink_to(tmp_path / "not_mounted" / STATE)
    found = find_run(tmp_path, host_resumes=True)
    assert (found.kind, found.paths) == ("state", paths)
    with pytest.raises(CheckpointError, match=f"{STATE} cannot be read .*not_mounted"):
        read(directory)


def test_a_restart_finds_its_own_job_only(tmp_path):
    mine, paths = run(tmp_path, "1", job="mine", state=False)
    run(tmp_path, "2", job="other")
    run(tmp_path, "3", job="mine", outcome={"steps": 3})  # finished: a job of an equal name
    found = find_job(tmp_path, "mine")
    assert (found.directory, found.kind, found.paths) == (mine, "begun", paths)
    (mine / STATE).write_bytes(b"")
    assert find_job(tmp_path, "mine").kind == "state"
    assert find_job(tmp_path, "third") is None and find_job(tmp_path, None) is None
    assert find_job(tmp_path / "absent", "mine") is None


def test_a_launcher_finds_the_run_that_it_has_started(tmp_path):
    mine, _ = run(tmp_path, "1", job="7", launcher=env.launcher())
    run(tmp_path, "2", job="7", launcher="another:1:2")
    run(tmp_path, "3", job="7", launcher=env.launcher(), outcome={"steps": 3})
    assert find_job(tmp_path, None, env.launcher()).directory == mine
    assert find_job(tmp_path, None, None) is None
    host, pid, started = env.launcher().split(":")
    assert int(pid) == os.getppid() and int(started) > 0


def test_the_name_of_a_job(monkeypatch):
    assert job_name(LaunchEnv()) is None
    assert job_name(LaunchEnv(launched=True, run_id="4711")) == "4711"
    unnamed = LaunchEnv(launched=True, run_id="none")
    assert job_name(unnamed) == f"none@{env.launcher()}"
    names = set()
    for launcher in ("node:1:100", "node:1:200", None):  # containers of one name; no /proc
        monkeypatch.setattr(env, "launcher", lambda launcher=launcher: launcher)
        names.add(job_name(unnamed))
    assert len(names) == 3 and f"none@{env.host_name()}:{os.getppid()}" in names
