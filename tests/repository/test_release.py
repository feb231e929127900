"""What a release and a hosting site read: citation, Dockerfile, workflow."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import robomimic_ddp
from robomimic_ddp.distributed import rendezvous
from tests.configs import make_config, write_config
from tests.datasets import make_hdf5
from tests.hosts import ROOT, installed_package
from tests.runs import run_directory


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


IMAGE = "robomimic-ddp-test"
COMPILES = "import torch; print(torch.compile(lambda x: x.sin() + 1)(torch.zeros(8)).sum().item())"


def succeeds(*words: object) -> bool:
    return subprocess.run([str(word) for word in words], capture_output=True).returncode == 0


def builder() -> str:
    """The program that builds images here; skips the test where there is none, or no base image."""
    has_daemon = shutil.which("docker") is not None and succeeds("docker", "info")
    name = "docker" if has_daemon else "buildah"
    if shutil.which(name) is None:
        pytest.skip("no docker daemon is running, and buildah is not installed")
    (base,) = instructions()["FROM"]
    if not succeeds(name, "inspect", "--type=image", base) and not succeeds(name, "pull", base):
        pytest.skip(f"{name} cannot pull {base}")
    return name


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_image_is_built_and_trains_on_two_ranks(tmp_path: Path) -> None:
    name = builder()
    build = ["docker", "build"] if name == "docker" else ["buildah", "build"]
    subprocess.run([*build, "--tag", IMAGE, str(ROOT)], check=True)
    make_hdf5(tmp_path / "data.hdf5")
    config = make_config("bc", Path("/data/data.hdf5"), Path("/data/runs"))
    write_config(tmp_path / "cfg.json", config)
    start = [name, "run", f"--volume={tmp_path}:/data", "--env=OMP_NUM_THREADS=1"]
    if name == "docker":
        start += ["--rm", "--ipc=host", IMAGE]
    else:
        made = subprocess.run(["buildah", "from", IMAGE], check=True, stdout=subprocess.PIPE)
        start += [made.stdout.decode().strip(), "--"]
    # Its host's name need not resolve, and its ports may be this machine's.
    here = [*rendezvous.on_this_machine(), "--local_addr=localhost"]
    train = ["torchrun", *here, "--nproc_per_node=2", "-m", "robomimic.scripts.train"]
    train += ["--config", "/data/cfg.json"]
    for words in (train, ["python", "-c", COMPILES]):
        done = subprocess.run([*start, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (run_directory(tmp_path / "runs") / "last.pth").is_file()


def test_a_citation_names_the_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == robomimic_ddp.__version__ == metadata.version("robomimic-ddp")


def test_the_workflow_runs_readmes_two_commands() -> None:
    (file,) = (ROOT / ".github" / "workflows").iterdir()
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    commands = {step["run"] for step in job["steps"] if "run" in step}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands == set(re.findall(r"^    (scripts/\w+\.sh)  ", readme, re.MULTILINE))
