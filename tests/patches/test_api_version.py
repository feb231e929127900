"""A host that was patched by another version of robomimic-ddp: one clear error, on one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from robomimic_ddp import api
from robomimic_ddp.errors import ApiVersionError, PatchError
from tests.hosts import Host, Result, python

LAUNCH = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}
HOST = """import robomimic_ddp.api as DDPUtils
{}
def main(args):
    print("it ran")


if __name__ == "__main__":
    main(None)
"""


def run(folder: Path, decorator: str, cold: bool = False, **variables: str) -> Result:
    (folder / "train.py").write_text(HOST.format(decorator))
    return python(Host(folder), "train", added=variables, cold=cold)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("decorator", "words", "cold"),
    [
        (f"@DDPUtils.entry_point(api_version={api.API_VERSION + 1})", "API version 2", True),
        ("@DDPUtils.something_newer", "DDPUtils.something_newer", False),
    ],
    ids=["another version", "a name that is not there"],
)
def test_it_is_one_message_without_a_traceback(tmp_path, decorator, words, cold):
    done = run(tmp_path, decorator, cold)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this host ") and done.stderr.count("\n") == 1
    assert words in done.stderr and "robomimic-ddp revert" in done.stderr


@pytest.mark.bad_input
def test_other_ranks_are_silent(tmp_path):
    decorator = "@DDPUtils.entry_point(api_version=0)"
    done = run(tmp_path, decorator, RANK="1", LOCAL_RANK="1", **LAUNCH)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_its_own_version_is_taken():
    assert callable(api.entry_point(api_version=api.API_VERSION)(print))
    with pytest.raises(PatchError):
        api.entry_point(api_version=api.API_VERSION + 1)
    with pytest.raises(ApiVersionError):
        api.no_such_name  # noqa: B018
    assert not hasattr(api, "__wrapped__")
