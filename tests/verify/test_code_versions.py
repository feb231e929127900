"""What is known of the code that trains."""

from __future__ import annotations

import subprocess

from robomimic_ddp import verify


def test_the_commit_of_a_package(tmp_path):
    package = tmp_path / "host"
    package.mkdir()
    (package / "__init__.py").touch()
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    git = ["git", "-C", str(tmp_path), *identity]
    assert verify.commit(package) is None and verify.commit(None) is None
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    assert verify.commit(package) is None, "a package that is installed below another checkout"
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "host"], check=True)
    assert len(verify.commit(package)) == 40
