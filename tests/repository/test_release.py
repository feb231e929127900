"""What a release and a hosting site read: citation, Dockerfile, workflow."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import yaml

import robomimic_ddp
from tests.hosts import ROOT, installed_package


def instructions() -> dict[str, list[str]]:
    """The Dockerfile's instructions by name, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


def test_the_dockerfile_installs_what_exists() -> None:
    steps = instructions()
    assert steps["COPY"] == [". ."]
    for step in steps["RUN"]:
        subprocess.run(["bash", "-n", "-c", step], check=True)
    (install,) = [shlex.split(step) for step in steps["RUN"] if step.startswith("pip")]
    assert (ROOT / install[install.index("--constraint") + 1]).is_file()
    extras = set(re.fullmatch(r"\.\[(.*)\]", install[-1])[1].split(","))
    assert extras <= set(metadata.metadata("robomimic-ddp").get_all("Provides-Extra"))


def test_the_dockerfiles_last_step_patches_the_installed_robomimic(tmp_path: Path) -> None:
    program = tmp_path / "robomimic-ddp"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    *_, apply = instructions()["RUN"]
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    words = {"env": {**os.environ, "PATH": path}, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", apply], check=True, **words)
    assert done.stdout == f"apply {installed_package()}\n"


def test_a_citation_names_the_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == robomimic_ddp.__version__ == metadata.version("robomimic-ddp")


def test_the_workflow_runs_readmes_two_commands() -> None:
    (file,) = (ROOT / ".github" / "workflows").iterdir()
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    commands = {step["run"] for step in job["steps"] if "run" in step}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands == set(re.findall(r"^    (scripts/\w+\.sh)  ", readme, re.MULTILINE))
