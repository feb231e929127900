"""The notebooks run from beginning to end, and their stored outputs name no machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts import notebooks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
MOST_BYTES = 1_500_000
OF_A_MACHINE = {
    "a path": re.compile(r"(?<![\w.])/(?:tmp|home|root|work|Users|usr|opt|var|mnt)\b"),
    "a process id": re.compile(r"\bpid (?!1\b)\d+"),
    "a duration": re.compile(r"\d (?:ms|s|seconds)\b|\d (?:steps|samples|it)/s"),
    "a time of day": re.compile(r"\b\d\d:\d\d:\d\d\b|\b20(?!260314093012)\d{12}\b"),
}


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Of each code cell."""
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def complaints(notebook: dict[str, Any]) -> list[str]:
    """What is wrong with the stored outputs of a notebook."""
    found = []
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    order = [cell["execution_count"] for cell in code]
    if order != list(range(1, len(code) + 1)):
        found.append(f"not run from top to bottom: {order}")
    every = [one for shown in outputs(notebook) for one in shown]
    if any(one["output_type"] == "error" for one in every):
        found.append("an error")
    if any(one.get("name") == "stderr" for one in every):
        found.append("text on stderr")
    if not any("image/png" in one.get("data", {}) for one in every):
        found.append("no picture")
    for text in ("".join(one["text"]) for one in every if "text" in one):
        found += [f"{name}: {one[0]}" for name, one in _of_a_machine(text)]
    return found


def _of_a_machine(text: str) -> list[tuple[str, Any]]:
    return [(name, one) for name, kind in OF_A_MACHINE.items() if (one := kind.search(text))]


def kinds(notebook: dict[str, Any]) -> list[list[str]]:
    """The kinds of outputs of each code cell."""
    return [
        [one.get("name") or "+".join(sorted(one.get("data", {}))) for one in shown]
        for shown in outputs(notebook)
    ]


def test_there_are_four_and_they_are_small() -> None:
    assert [path.stem[:2] for path in notebooks.NOTEBOOKS] == ["01", "02", "03", "04"]
    assert sum(path.stat().st_size for path in notebooks.NOTEBOOKS) < MOST_BYTES


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs(path: Path) -> None:
    assert complaints(json.loads(path.read_text())) == []


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_of_ours_exists(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    for line in re.findall(r"^ *from robomimic_ddp.*", code, re.MULTILINE):
        exec(line.strip(), {})


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="the extra [test] is not installed")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # ipykernel would leave out what subprocesses print
    run = notebooks.execute(path, tmp_path)  # raises at the first cell that fails
    assert complaints(run) == []
    assert kinds(run) == kinds(json.loads(path.read_text()))
