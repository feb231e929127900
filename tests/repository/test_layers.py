"""Checks the layers of the package by its imports, and what an import may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

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


@dataclass(frozen=True)
class Import:
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
            found.extend(
                Import(f"{node.module}.{alias.name}", node.lineno, at_import)
                for alias in node.names
            )
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, at_import and not inside)

    visit(ast.parse(text), True)
    return found


def runtime_files() -> list[Path]:
    files = PACKAGE.rglob("*.py")
    return sorted(file for file in files if "patches" not in file.relative_to(PACKAGE).parts)


def name_of(file: Path) -> str:
    """The module's name in the package: rlds/loaders/train.py -> data.rlds.loaders.train."""
    folder = PACKAGE if PACKAGE in file.parents else ROOT  # patches is a link in the package
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(name: str) -> str:
    """The room that a module, or a name in one, belongs to."""
    first, _, rest = name.partition(".")
    return "training.step" if first == "training" and rest.split(".")[0] == "step" else first


def layer_of(room: str) -> int:
    found = [number for number, rooms in enumerate(LAYERS) if room in rooms]
    assert found, f"robomimic_ddp/{room} has no layer: give it one in LAYERS and in the documents"
    return found[0]


def names_from_package(text: str) -> list[tuple[int, str]]:
    """Line and name of what is imported from the package, without "robomimic_ddp."."""
    found = [(item.line, item.name.partition(".")) for item in imports_of(text)]
    return [
        (line, name)
        for line, (top, _, name) in found
        if top == "robomimic_ddp" and name and name not in {"__version__", "API_VERSION"}
    ]


def layer_faults(room: str, text: str) -> list[str]:
    """What a module of `room` with this source text imports against the rules."""
    faults = []
    for line, name in names_from_package(text):
        other = room_of(name)
        if other == "patches":
            if room not in {"cli", "__main__"}:
                faults.append(f"line {line}: the runtime imports {name}")
        elif other != room and layer_of(other) >= layer_of(room):
            faults.append(f"line {line}: {room} imports {name}, which is not below it")
    return faults


def module_graph() -> dict[str, set[str]]:
    """Module -> modules that it imports anywhere, for type checkers too. A package's __init__
    stands for itself: what imports a name from it also imports all that it does.
    """
    edits = sorted((ROOT / "patches").rglob("*.py"))
    files = {name_of(file): file for file in [*runtime_files(), *edits]}
    graph = {}
    for name, file in files.items():
        used = set()
        for _, other in names_from_package(file.read_text()):
            parts = other.split(".")
            heads = (".".join(parts[:size]) for size in range(len(parts), 0, -1))
            used.add(next((head for head in heads if head in files), ""))
        graph[name] = used - {"", name}
    return graph


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = module_graph()
    assert len(graph) > 150 and any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


@pytest.mark.parametrize("file", runtime_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(file: Path) -> None:
    if file == PACKAGE / "__init__.py":
        assert {item.name for item in imports_of(file.read_text())} <= {"__future__.annotations"}
        return
    assert layer_faults(room_of(name_of(file)), file.read_text()) == []


def test_the_rules_see_a_wrong_import() -> None:
    assert layer_faults("config", "from robomimic_ddp.distributed import group")
    assert layer_faults("data", "def f():\n    from robomimic_ddp.monitoring import metrics")
    assert layer_faults("training.step", "from robomimic_ddp.training import run")
    assert layer_faults("api", "import robomimic_ddp.patches.engine")
    assert not layer_faults("api", "from robomimic_ddp.training import run")
    assert not layer_faults("data", "from robomimic_ddp.data.rlds.index.source import Source")


@pytest.mark.parametrize("file", runtime_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_heavy_imports_stay_where_they_belong(file: Path) -> None:
    name = name_of(file)
    for item in imports_of(file.read_text()):
        top = item.name.split(".")[0]
        place = f"{file.relative_to(ROOT)}:{item.line} imports {item.name}"
        if top in {"torch", "torchvision"}:
            assert not name.startswith(WITHOUT_TORCH), place
        if top in {"tensorflow", "tensorflow_datasets"}:
            assert name.startswith("data.rlds"), f"{place}: only data/rlds/ does"
            assert not item.at_import, f"{place}: only inside functions"
        if top == "robomimic":
            assert name == "train_rlds" or not item.at_import, f"{place}: no host at import time"
        if top == "libcst":
            pytest.fail(f"{place}: only patches/ edits source text")


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "patches").rglob("*.py")),
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_patches_import_libcst_and_the_lowest_layer_only(file: Path) -> None:
    below = {"syntax": ("patches.syntax",), "host": ("patches.syntax", "patches.host")}
    rooms = ("errors", "files", "terminal", *below.get(file.parent.name, ("patches",)))
    allowed = ("libcst", *(f"robomimic_ddp.{room}" for room in rooms))
    for item in imports_of(file.read_text()):
        if item.name.split(".")[0] not in sys.stdlib_module_names:
            assert item.name.startswith(allowed), f"line {item.line} imports {item.name}"


@pytest.mark.parametrize(("package", "loaded"), [("robomimic_ddp", ""), ("numpy", "numpy")])
def test_import_loads_no_heavy_package(package: str, loaded: str) -> None:
    heavy = "{'torch', 'tensorflow', 'tensorflow_datasets', 'robomimic', 'numpy'}"
    words = ["-c", f"import sys, {package}; print(*{heavy}.intersection(sys.modules))"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, loaded), done.stderr
