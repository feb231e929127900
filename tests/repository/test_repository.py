"""The repository's hygiene: what no tracked file may contain, who prints, who reads variables."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST_TEXT_BYTES = 400_000
LARGEST_BINARY_BYTES = 300_000
"""Room for a small picture in docs/; datasets and checkpoints are made by scripts."""

# Assembled, so that this file does not contain what it forbids.
FORBIDDEN = re.compile(
    r"(?<![\w.$}\])~-])/(" + "|".join(["ro" + "ot", "wo" + "rk", "ho" + "me"]) + r")/|"
    r"py" + r"pi\.org|python" + r"hosted\.org|index" + r"-url|"
    r"pip install (?:-\S+ )*['\"]?robomimic[-_]" + r"ddp(?![-\w./])"
)
"""Paths of one machine, hosts of registries, and the package by its name, which is on no index:
`pip install .` in the checkout.
"""


def tracked_files() -> list[Path]:
    """What git tracks, or would track next."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    names = sorted(set(done.stdout.splitlines()))
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def text_of(file: Path) -> str | None:
    """The text of a file, or None for a binary one."""
    data = file.read_bytes()
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def test_files_contain_no_machine_paths_and_no_registries() -> None:
    for text in ("cd /ro" + "ot/x", '"/ho' + 'me/me"', "pip install -U 'robomimic-" + "ddp[rlds]'"):
        assert FORBIDDEN.search(text)
    assert not FORBIDDEN.search("~/ho" + "me/x, pip install robomimic-" + "ddp/")
    faults = []
    for file in tracked_files():
        for number, line in enumerate((text_of(file) or "").splitlines(), 1):
            if FORBIDDEN.search(line):
                faults.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not faults, "\n".join(faults)


def test_no_large_or_compiled_files() -> None:
    faults = []
    for file in tracked_files():
        limit = LARGEST_BINARY_BYTES if text_of(file) is None else LARGEST_TEXT_BYTES
        if file.stat().st_size > limit or file.suffix in {".pyc", ".so", ".pth", ".hdf5", ".whl"}:
            faults.append(f"{file.relative_to(ROOT)} ({file.stat().st_size} bytes)")
    assert not faults, "\n".join(faults)


def environment_reads(text: str) -> Iterator[int]:
    """Lines that use `os.environ`, `os.getenv` or `os.putenv`, however imported."""
    names = {"environ", "environb", "getenv", "putenv"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in names)


def prints(text: str) -> Iterator[int]:
    """Lines that print, or write to a standard stream. `terminal` takes the escape sequences out
    of a stranger's text.
    """
    streams = {"stdout", "stderr", "__stdout__", "__stderr__"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            function, stream = node.func, getattr(node.func, "value", None)
            writes = getattr(function, "attr", "") == "write"
            if getattr(function, "id", "") in ("print", "pprint"):
                yield node.lineno
            elif writes and getattr(stream, "attr", "") in streams:
                yield node.lineno


@pytest.mark.parametrize(
    "uses, module, seen",
    [
        (environment_reads, "config/env.py", "os.environ['A']\nfrom os import getenv\nos.path\n"),
        (prints, "terminal.py", "print(1)\nsys.__stderr__.write('x')\nfile.write('x')\n"),
    ],
    ids=["reads variables", "prints"],
)
def test_only_one_module_does_it(
    uses: Callable[[str], Iterator[int]], module: str, seen: str
) -> None:
    assert sorted(uses(seen)) == [1, 2]
    files = [*(ROOT / "robomimic_ddp").rglob("*.py"), *(ROOT / "patches").rglob("*.py")]
    others = [file for file in files if file != ROOT / "robomimic_ddp" / module]
    lines = {str(file.relative_to(ROOT)): list(uses(file.read_text())) for file in others}
    assert not {name: found for name, found in lines.items() if found}, f"only {module} does"
