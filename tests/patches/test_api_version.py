"""A host that was patched by another version: the same error from every command, on one rank."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from robomimic_ddp import api
from robomimic_ddp.errors import ApiVersionError
from robomimic_ddp.patches import record
from tests.hosts import Host, Result, python
from tests.patches.support import snapshot
from tests.processes import rank_variables

HOST = """import robomimic_ddp.api as DDPUtils
{}
def main(args):
    print("it ran")


if __name__ == "__main__":
    main(None)
"""


def run(folder: Path, decorator: str, **variables: str) -> Result:
    (folder / "train.py").write_text(HOST.format(decorator))
    return python(Host(folder), "train", added=variables)


@pytest.mark.bad_input
def test_it_is_one_message_without_a_traceback(tmp_path):
    done = run(tmp_path, f"@DDPUtils.entry_point(api_version={api.API_VERSION + 1})")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this host ") and done.stderr.count("\n") == 1
    assert "API version 2" in done.stderr and "robomimic-ddp revert" in done.stderr


@pytest.mark.bad_input
def test_other_ranks_are_silent(tmp_path):
    decorator = "@DDPUtils.entry_point(api_version=0)"
    done = run(tmp_path, decorator, **rank_variables(1, 2))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.bad_input
def test_commands_refuse_as_training_does_and_revert_gives_the_files_back(
    host, command, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))  # `run` puts the host first
    before = snapshot(host)
    command("apply", host)
    path = host / "scripts/train.py"  # as the other version has written it, and its record
    path.write_text(path.read_text().replace("api_version=1", "api_version=2"))
    content = json.loads((host / record.NAME).read_text())
    written = hashlib.sha256(path.read_bytes()).hexdigest()
    content["files"]["scripts/train.py"]["patched_sha256"] = written
    (host / record.NAME).write_text(json.dumps(content))
    patched = snapshot(host)
    with pytest.raises(ApiVersionError) as refused:
        api.entry_point(api_version=2)
    for arguments in (
        *(["status", host], ["diff", host], ["apply", host], ["apply", "--check", host]),
        *(["apply", "--without", "ask", host], ["run", "--host", host, "robomimic.scripts.train"]),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (1, "") and str(refused.value) in err, arguments
    assert snapshot(host) == patched
    assert command("revert", host)[0] == 0
    assert snapshot(host) == before
