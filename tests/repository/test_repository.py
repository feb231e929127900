"""The repository's hygiene: what no tracked file may contain, and who reads the environment."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST_TEXT_BYTES = 400_000
LARGEST_BINARY_BYTES = 300_000
"""Room for a small picture in docs/; datasets and checkpoints are made by scripts."""

# Assembled, so that this file does not contain what it forbids.
MACHINE_PATH = re.compile(
    r"(?<![\w.$}\])~-])/(" + "|".join(["ro" + "ot", "wo" + "rk", "ho" + "me"]) + r")/"
)
REGISTRY_HOST = re.compile(
    r"(" + "|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "index" + "-url"]) + r")"
)


def tracked_files() -> list[Path]:
    """What git tracks, or would track next; the whole tree outside a checkout has no such list."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(done.stdout.splitlines()))
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def text_of(file: Path) -> str | None:
    """The text of a file, or None for a binary one."""
    data = file.read_bytes()
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def test_files_hold_no_machine_paths_and_no_registry_hosts() -> None:
    faults = []
    for file in tracked_files():
        for number, line in enumerate((text_of(file) or "").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                faults.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("text", ["see /ro" + "ot/x", '"/ho' + 'me/me/data"', "cd /wo" + "rk/x"])
def test_machine_paths_are_recognised(text: str) -> None:
    assert MACHINE_PATH.search(text)
    assert not MACHINE_PATH.search(text.replace(" /", " $HOME/").replace('"/', '"~/'))


def test_no_large_or_compiled_files() -> None:
    faults = []
    for file in tracked_files():
        limit = LARGEST_BINARY_BYTES if text_of(file) is None else LARGEST_TEXT_BYTES
        if file.stat().st_size > limit or file.suffix in {".pyc", ".so", ".pth", ".hdf5", ".whl"}:
            faults.append(f"{file.relative_to(ROOT)} ({file.stat().st_size} bytes)")
    assert not faults, "\n".join(faults)


def environment_reads(text: str) -> list[int]:
    """Lines that use `os.environ`, `os.getenv` or `os.putenv`, however imported."""
    names = {"environ", "environb", "getenv", "putenv"}
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            lines.extend(node.lineno for alias in node.names if alias.name in names)
    return lines


def test_only_env_reads_the_environment() -> None:
    assert environment_reads("import os\nos.environ['A']") == [2]
    assert environment_reads("from os import getenv") == [1]
    for file in [*(ROOT / "robomimic_ddp").rglob("*.py"), *(ROOT / "patches").rglob("*.py")]:
        if file != ROOT / "robomimic_ddp" / "config" / "env.py":
            lines = environment_reads(file.read_text())
            assert not lines, f"{file.relative_to(ROOT)} reads the environment in lines {lines}"


def test_all_of_it_is_read_by_the_oldest_python() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("try: pass\nexcept* OSError: pass", feature_version=(3, 10))
    files = [file for file in tracked_files() if file.suffix == ".py"]
    assert len(files) > 300
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 10))


def test_nobody_is_reported_to_install_the_package_from_an_index() -> None:
    """It is on none: `pip install .` in the checkout."""
    by_name = re.compile(r"pip install (?:-\S+ )*['\"]?robomimic[-_]" + r"ddp(?![-\w./])")
    assert by_name.search("pip install -U 'robomimic-" + "ddp[rlds]'")
    faults = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in tracked_files()
        for number, line in enumerate((text_of(file) or "").splitlines(), 1)
        if by_name.search(line)
    ]
    assert not faults, "\n".join(faults)
