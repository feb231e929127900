"""Checks the layers of the package by its imports, and what an import may load."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "robomimic_ddp"

LAYERS = (
    {"errors", "files", "terminal"},
    {"config"},
    {"distributed"},
    {"data", "monitoring"},
    {"verify"},
    {"checkpoint"},
    {"training.step"},
    {"training"},
    {"api"},
    {"train_rlds"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
"""The rooms of the package, docs/how_it_works.md says what each is for. A module imports from its
own room and from lines above; rooms of one line do not know each other. `training` is built of
`training.step`, which knows nothing of it.
"""

WITHOUT_TORCH = (
    *("__init__", "errors", "files", "terminal", "config"),
    *("monitoring.records.history", "commands.plot"),
)


class Import(NamedTuple):
    """One imported dotted name, and whether importing the file runs it (no function around it)."""

    name: str
    line: int
    at_import: bool


def imports_of(text: str) -> list[Import]:
    """Every absolute import in a source text; `from a import b` counts as `a.b`."""
    found = []

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.extend(Import(name, node.lineno, at_import) for name in names)
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, at_import and not inside)

    visit(ast.parse(text), True)
    return found


def name_of(file: Path) -> str:
    """The module's name in the package: rlds/loaders/train.py -> data.rlds.loaders.train."""
    folder = PACKAGE if PACKAGE in file.parents else ROOT  # patches is a link in the package
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


EDITS = sorted((ROOT / "patches").rglob("*.py"))
RUNTIME = sorted(
    file for file in PACKAGE.rglob("*.py") if "patches" not in file.relative_to(PACKAGE).parts
)


@functools.cache
def imports(file: Path) -> list[Import]:
    return imports_of(file.read_text())


def room_of(name: str) -> str:
    """The room that a module, or a name in one, belongs to."""
    first, _, rest = name.partition(".")
    return "training.step" if first == "training" and rest.split(".")[0] == "step" else first


def layer_of(room: str) -> int:
    found = [number for number, rooms in enumerate(LAYERS) if room in rooms]
    assert found, f"robomimic_ddp/{room} has no layer: give it one in LAYERS and in the documents"
    return found[0]


def from_package(items: list[Import]) -> list[tuple[int, str]]:
    """Line and name of what is imported from the package, without "robomimic_ddp."."""
    found = [(item.line, item.name.partition(".")) for item in items]
    return [
        (line, name)
        for line, (top, _, name) in found
        if top == "robomimic_ddp" and name and name not in {"__version__", "API_VERSION"}
    ]


def layer_faults(room: str, items: list[Import]) -> list[str]:
    """What a module of `room` imports against the rules."""
    faults = []
    for line, name in from_package(items):
        other = room_of(name)
        if other == "patches":
            if room not in {"cli", "__main__"}:
                faults.append(f"line {line}: the runtime imports {name}")
        elif other != room and layer_of(other) >= layer_of(room):
            faults.append(f"line {line}: {room} imports {name}, which is not below it")
    return faults


def test_no_module_imports_itself_by_way_of_others() -> None:
    """By imports anywhere, for type checkers too. A package's __init__ stands for itself: what
    imports a name from it also imports all that it does.
    """
    names = {name_of(file): file for file in [*RUNTIME, *EDITS]}
    graph = {}
    for name, file in names.items():
        used = set()
        for _, other in from_package(imports(file)):
            parts = other.split(".")
            heads = (".".join(parts[:size]) for size in range(len(parts), 0, -1))
            used.add(next((head for head in heads if head in names), ""))
        graph[name] = used - {"", name}
    assert len(graph) > 150 and any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


def test_modules_import_only_from_lower_layers() -> None:
    for file in RUNTIME:
        if file == PACKAGE / "__init__.py":
            assert {item.name for item in imports(file)} <= {"__future__.annotations"}
        else:
            assert layer_faults(room_of(name_of(file)), imports(file)) == [], file


@pytest.mark.parametrize(
    "room, text, is_wrong",
    [
        ("data", "def f():\n    from robomimic_ddp.monitoring import metrics", True),
        ("training.step", "from robomimic_ddp.training import run", True),
        ("api", "import robomimic_ddp.patches.engine", True),
        ("api", "from robomimic_ddp.training import run", False),
        ("data", "from robomimic_ddp.data.rlds.index.source import Source", False),
    ],
)
def test_the_rules_see_a_wrong_import(room: str, text: str, is_wrong: bool) -> None:
    assert bool(layer_faults(room, imports_of(text))) is is_wrong


def test_heavy_imports_stay_where_they_belong() -> None:
    for file in RUNTIME:
        name = name_of(file)
        for item in imports(file):
            top = item.name.split(".")[0]
            place = f"{file.relative_to(ROOT)}:{item.line} imports {item.name}"
            if top in {"torch", "torchvision"}:
                assert not name.startswith(WITHOUT_TORCH), place
            if top in {"tensorflow", "tensorflow_datasets"}:
                assert name.startswith("data.rlds"), f"{place}: only data/rlds/ does"
                assert not item.at_import, f"{place}: only inside functions"
            if top == "robomimic":
                starts = name in ("train_rlds", "commands.ckpt.load_policy")  # the latter: copied
                assert starts or not item.at_import, f"{place}: no host at import"
            assert top != "libcst", f"{place}: only patches/ edits source text"
            assert top != "diffusers", f"{place}: its API changed; averages are the package's"


def test_patches_import_libcst_and_the_lowest_layer_only() -> None:
    below = {"syntax": ("patches.syntax",), "host": ("patches.syntax", "patches.host")}
    for file in EDITS:
        rooms = ("errors", "files", "terminal", *below.get(file.parent.name, ("patches",)))
        allowed = ("libcst", *(f"robomimic_ddp.{room}" for room in rooms))
        for item in imports(file):
            if item.name.split(".")[0] not in sys.stdlib_module_names:
                assert item.name.startswith(allowed), f"{file}:{item.line} imports {item.name}"


@pytest.mark.parametrize(("package", "loaded"), [("robomimic_ddp", ""), ("numpy", "numpy")])
def test_import_loads_no_heavy_package(package: str, loaded: str) -> None:
    heavy = "{'torch', 'tensorflow', 'tensorflow_datasets', 'robomimic', 'numpy'}"
    words = ["-c", f"import sys, {package}; print(*{heavy}.intersection(sys.modules))"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, loaded), done.stderr
