"""scripts/lib/environment.sh: which Python it takes, what it says without one, when it installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the scripts, and nothing installed."""
    for name in ("scripts", "setup.py", "constraints.txt", "constraints-oldest.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def call(
    checkout: Path, python: object, *first: str, folder: Path = ROOT
) -> subprocess.CompletedProcess:
    """Runs scripts/test.sh with PYTHON=`python` from `folder`."""
    return subprocess.run(
        [checkout / "scripts" / "test.sh", *first, "--version"],
        cwd=folder,
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def recorder(path: Path, before: str = "") -> Path:
    """A Python at `path` whose `-m` commands (venv, pip, pytest) are only written down."""
    calls = path.parents[2] / "calls"
    record = f'if [ "$1" = -m ]; then echo "$@" >> "{calls}"; exit 0; fi'
    return script(path, f'{record}\n{before}exec "{sys.executable}" "$@"')


def called(tmp_path: Path) -> list[str]:
    return [line.split()[1] for line in (tmp_path / "calls").read_text().splitlines()]


@pytest.mark.bad_input
def test_an_old_or_missing_python_is_one_clear_error(checkout: Path, tmp_path: Path) -> None:
    old = script(tmp_path / "python-old", "exit 1")  # its answer to "do you suit?"
    for python in (old, tmp_path / "nowhere"):
        done = call(checkout, python)
        assert done.returncode != 0 and done.stderr.count("error:") == 1
        assert "3.10 to 3.13" in done.stderr and str(python) in done.stderr
        assert "Traceback" not in done.stderr and not (checkout / ".venv").exists()


SCRIPTS = ("demo", "demo_robosuite", "gpu_check", "mutate", "test")


def start(checkout: Path, script: str, *words: str) -> subprocess.CompletedProcess:
    """Runs scripts/SCRIPT.sh in a checkout without an environment; PYTHON records installations."""
    python = recorder(checkout / "base" / "bin" / "python")
    return subprocess.run(
        [checkout / "scripts" / f"{script}.sh", *words],
        cwd=checkout,
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_installs_nothing(checkout: Path, script: str) -> None:
    done = start(checkout, script, "--help")
    assert done.returncode == 0 and f"scripts/{script}.sh" in done.stdout, done
    assert not (checkout / "calls").exists() and not list(checkout.glob(".venv*"))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("script", "word"),
    [
        *((script, "--nonsense") for script in SCRIPTS if script != "test"),  # pytest's own
        ("demo", "--ranks=two"),
    ],
)
def test_a_wrong_argument_installs_nothing(checkout: Path, script: str, word: str) -> None:
    done = start(checkout, script, word)
    assert done.returncode == 2 and f"scripts/{script}.sh: error: " in done.stderr, done
    assert not (checkout / "calls").exists() and not list(checkout.glob(".venv*"))


@pytest.mark.bad_input
def test_the_oldest_environment_wants_a_python_of_its_own(checkout: Path, tmp_path: Path) -> None:
    done = call(checkout, script(tmp_path / "python-newer", "exit 1"), "--oldest")
    assert done.returncode != 0 and done.stderr.count("error:") == 1
    assert "3.10 to 3.10" in done.stderr and "python3.10 " in done.stderr
    assert not list(checkout.glob(".venv*"))


def test_it_installs_once_and_again_after_a_change(checkout: Path, tmp_path: Path) -> None:
    recorder(checkout / ".venv" / "bin" / "python")
    for expected in (["pip", "pytest"], ["pip", "pytest", "pytest"]):
        assert call(checkout, sys.executable, folder=tmp_path).returncode == 0
        assert called(tmp_path) == expected
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert call(checkout, sys.executable, folder=Path("/")).returncode == 0
    assert called(tmp_path)[-2:] == ["pip", "pytest"]


def test_a_venv_whose_making_was_interrupted_is_made_again(checkout: Path, tmp_path: Path) -> None:
    """Its Python exists before pip does."""
    recorder(checkout / ".venv" / "bin" / "python")
    base = recorder(tmp_path / "base" / "bin" / "python")
    (checkout / ".venv.unfinished").touch()
    for expected in (["venv", "pip", "pytest"], ["venv", "pip", "pytest", "pytest"]):
        done = call(checkout, base)
        assert done.returncode == 0
        assert ("6 GB on disk" in done.stderr) is (expected[-2:] != ["pytest", "pytest"])
        assert called(tmp_path) == expected
    assert not (checkout / ".venv.unfinished").exists()


def test_a_venv_of_another_python_than_the_one_asked_for_is_made_again(
    checkout: Path, tmp_path: Path
) -> None:
    reply = 'if [ "$1" = -c ]; then echo 3 0; exit 0; fi\n'
    recorder(checkout / ".venv" / "bin" / "python", reply)
    base = recorder(tmp_path / "base" / "bin" / "python")
    assert call(checkout, base).returncode == 0
    assert called(tmp_path) == ["venv", "pip", "pytest"]


def test_oldest_installs_the_listed_versions_and_nothing_else(
    checkout: Path, tmp_path: Path
) -> None:
    is_old = 'if [ "$2" = 3.10 ]; then [ "$3" = 3.10 ]; exit $?; fi\n'
    recorder(checkout / ".venv-oldest" / "bin" / "python", is_old)
    for _ in range(2):
        assert call(checkout, sys.executable, "--oldest").returncode == 0
    install, *tests = (tmp_path / "calls").read_text().splitlines()
    assert f"--no-deps --requirement {checkout / 'constraints-oldest.txt'} " in install
    assert install.endswith(f"--editable {checkout}")
    assert len(tests) == 2 and all(line.startswith("-m pytest ") for line in tests)
    assert all(line.endswith(" --version") for line in tests)
    assert not (checkout / ".venv").exists()
