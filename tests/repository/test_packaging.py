"""Wheel, sdist and editable installs have every module, wherever Python is started."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

OF_HOSTS = {
    *("torch", "torchvision", "numpy", "h5py", "diffusers", "transformers", "huggingface-hub"),
    *("tensorflow", "tensorflow-datasets", "tensorboard", "praxis-robomimic", "robomimic"),
}
"""What hosts pin, or build themselves."""
IMPORT_ALL = """
import importlib, pkgutil, robomimic_ddp.patches
print(robomimic_ddp.__file__)
names = pkgutil.walk_packages(robomimic_ddp.patches.__path__, "robomimic_ddp.patches.")
for name in ["robomimic_ddp.patches.fixers", *(item.name for item in names)]:
    print(name, importlib.import_module(name).__file__)
"""


def run(*command: object, folder: Path, environment: dict | None = None) -> str:
    """Runs a command in `folder` and returns its output."""
    words = [str(word) for word in command]
    # A checkout on PYTHONPATH would be imported instead of what was installed.
    environment = os.environ | {"PYTHONPATH": ""} if environment is None else environment
    environment = {name: str(text) for name, text in environment.items()}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def modules() -> set[str]:
    """Every module file of the checkout, by the path that it must have in a wheel."""
    runtime = {path.relative_to(ROOT) for path in (ROOT / "robomimic_ddp").rglob("*.py")}
    edits = (path.relative_to(ROOT) for path in (ROOT / "patches").rglob("*.py"))
    patches = {"robomimic_ddp" / path for path in edits}
    assert patches, "patches/ has no modules"
    return {path.as_posix() for path in runtime | patches}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files: building leaves folders behind, not for the checkout."""
    copy = tmp_path_factory.mktemp("package") / "checkout"
    names = run("git", "ls-files", "-co", "--exclude-standard", folder=ROOT).splitlines()
    for name in names:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def build(kind: str, checkout: Path) -> Path:
    """Builds "wheel", "editable" or "sdist" of a checkout and returns the file."""
    results = checkout.parent / f"{checkout.name}-{kind}"
    results.mkdir(exist_ok=True)
    call = f"import setuptools.build_meta as b, sys; b.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", call, results, folder=checkout)
    (built,) = results.iterdir()
    return built


def install(wheel: Path, folder: Path) -> Path:
    """Makes an environment with the wheel, and this one's other packages behind it."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return build("wheel", checkout)


def test_the_wheel_holds_every_module_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert modules() - names == set()
    assert not [name for name in names if name.startswith(("tests/", "patches/", "scripts/"))]
    assert [name for name in names if name.endswith("LICENSE")]
    schemas = (ROOT / "configs" / "rlds").glob("*.yaml")
    assert {"droid.yaml", "bridge.yaml"} <= {path.name for path in schemas}
    for name in ("droid", "bridge"):
        assert f"robomimic_ddp/data/rlds/schemas/{name}.yaml" in names
    assert "robomimic_ddp/commands/inspect_data/job_template.json" in names


def test_an_install_moves_nothing_that_is_there(wheel: Path) -> None:
    """With scripts/test.sh --oldest: beside DROID's torch 2.0.1 and transformers 4.34."""
    words = ["install", "--dry-run", "--no-index", "--quiet", "--report", "-", wheel]
    report = json.loads(run(sys.executable, "-m", "pip", *words, folder=Path("/")))
    moved = {item["metadata"]["name"] for item in report["install"]}
    assert moved <= {"robomimic-ddp"}


def test_nothing_that_hosts_pin_is_required(wheel: Path) -> None:
    (path,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")]
    lines = zipfile.ZipFile(wheel).read(path).decode().splitlines()
    texts = [line.split(": ", 1)[1] for line in lines if line.startswith("Requires-Dist: ")]
    needed: set[str] = set()
    while texts:  # by regular expression: omegaconf 2.1's own are not as the standard has them
        text = texts.pop()
        name = re.match(r"[-\w.]+", text)[0].lower()
        if name not in needed and "extra ==" not in text:
            needed.add(name)
            with suppress(metadata.PackageNotFoundError):  # for another Python
                texts += metadata.requires(name) or []
    assert {"libcst", "omegaconf"} <= needed
    assert not needed & OF_HOSTS


def test_an_archive_that_lost_the_symbolic_link_gives_the_same_wheel(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "unzipped"
    shutil.copytree(checkout, copy, symlinks=True)
    link = copy / "robomimic_ddp" / "patches"
    target = link.readlink()
    link.unlink()
    link.write_text(str(target))  # what zip archives and some checkouts make of it
    same = build("wheel", copy)
    assert zipfile.ZipFile(same).namelist() == zipfile.ZipFile(wheel).namelist()


def test_a_wheel_built_from_the_sdist_is_the_same(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(build("sdist", checkout)) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4
        archive.extractall(tmp_path, **safe)
    (source,) = tmp_path.iterdir()
    same = build("wheel", source)
    assert set(zipfile.ZipFile(same).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_an_installed_wheel_imports_from_anywhere(wheel: Path, checkout: Path) -> None:
    folder = wheel.parent.parent / "wheel-environment"
    python = install(wheel, folder)
    lines = run(python, "-c", IMPORT_ALL, folder=Path("/")).splitlines()
    assert len(lines) > 1
    assert all(str(folder) in line for line in lines), lines
    # `python -c` puts the current folder first, so the checkout's own modules are found there.
    lines = run(python, "-c", IMPORT_ALL, folder=checkout).splitlines()
    assert all(str(checkout) in line for line in lines), lines
    script = (folder / "bin" / "robomimic-ddp").read_text()
    assert "from robomimic_ddp.cli import main" in script
    installed = folder / "share" / "robomimic-ddp"
    patterns = ("scripts/train_*", "configs/*.json", "configs/clusters/*")
    for shared in (path for pattern in patterns for path in checkout.glob(pattern)):
        there = installed / shared.relative_to(checkout)
        assert there.read_bytes() == shared.read_bytes()
    config = installed / "configs" / "droid_rlds.json"
    launcher = ["bash", installed / "scripts" / "train_multi_gpu.sh", "--config", config]
    environment = {"PYTHON": python, "PATH": os.defpath, "CUDA_VISIBLE_DEVICES": ""}
    reported = run(*launcher, "--gpus", 2, "--dry-run", folder=Path("/"), environment=environment)
    assert f"{python} -m torch.distributed.run" in reported
    assert "ranks: 2, on" in reported


def test_an_editable_install_imports_from_anywhere(checkout: Path) -> None:
    editable = build("editable", checkout)
    python = install(editable, editable.parent.parent / "editable-environment")
    for folder in (Path("/"), checkout):
        lines = run(python, "-c", IMPORT_ALL, folder=folder).splitlines()
        assert len(lines) > 1
        assert all(str(checkout) in line for line in lines), lines
