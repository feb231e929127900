"""Holds the layer rules of the package by reading its imports, and what an import may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "robomimic_ddp"

LAYERS = (
    {"errors"},
    {"env", "options", "paths", "remedies", "tree"},
    {"plan", "host_seams"},
    {"places", "random_streams", "rendezvous", "swapping"},
    {"group", "hdf5_structure"},
    {"step_logs", "bucket_layout", "buffers", "step_hooks", "nests", "language"} | {"config_check"},
    {"history", "main_rank"},
    {"wrap", "sampling", "rlds", "metrics", "algo"}
    | {"command_line", "config_file", "hdf5_check", "heartbeat", "notes", "figures"}
    | {"determinism"},
    {"rollouts", "step", "checkpoint", "checkpoint_check", "finite", "debug", "verify", "entry"}
    | {"stopping", "pace"},
    {"progress", "block"},
    {"state"},
    {"run_record"},
    {"run"},
    {"host_config"},
    {"resume"},
    {"seams"},
    {"api"},
    {"train_rlds", "doctor", "bench", "plot", "launch", "ckpt", "watch", "stats", "inspect_data"},
    {"cli"},
    {"__main__"},
)
"""A module imports only from lines above its own. `cli` joins the parts: it stands above them."""

WITHOUT_TORCH = {"__init__", "errors", "env", "options", "remedies", "plan", "host_seams", "tree"}
WITHOUT_TORCH |= {"history", "figures", "plot"}


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


def part_of(file: Path) -> str:
    """The module or subpackage of the runtime that a file belongs to: rlds/loader.py -> rlds."""
    first = file.relative_to(PACKAGE).parts[0]
    return first[: -len(".py")] if first.endswith(".py") else first


def layer_of(part: str) -> int:
    found = [number for number, parts in enumerate(LAYERS) if part in parts]
    assert found, f"robomimic_ddp/{part} has no layer: give it one in LAYERS and in the documents"
    return found[0]


def layer_faults(part: str, text: str) -> list[str]:
    """What a module of `part` with this source text imports against the rules."""
    faults = []
    for item in imports_of(text):
        words = item.name.split(".")
        if words[0] != "robomimic_ddp" or len(words) == 1:
            continue
        other = words[1]
        if other == "API_VERSION" or (other.startswith("__") and other != "__main__"):
            continue  # of robomimic_ddp/__init__.py
        if other == "patches":
            if part not in {"cli", "__main__"}:
                faults.append(f"line {item.line}: the runtime imports {item.name}")
        elif other != part and layer_of(other) >= layer_of(part):
            faults.append(f"line {item.line}: {part} imports {item.name}, which is not below it")
    return faults


@pytest.mark.parametrize("file", runtime_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(file: Path) -> None:
    if file == PACKAGE / "__init__.py":
        assert not imports_of(file.read_text()) or all(
            item.name.startswith("__future__") for item in imports_of(file.read_text())
        )
        return
    assert layer_faults(part_of(file), file.read_text()) == []


def import_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """Module -> the modules it imports, {name: source text}; those for type checkers count too."""

    def module_of(name: str) -> str:
        while name and name not in texts:
            name = name.rpartition(".")[0]
        return name

    return {
        module: {module_of(item.name) for item in imports_of(text)} - {module, ""}
        for module, text in texts.items()
    }


def test_no_module_imports_itself_over_others() -> None:
    texts = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text()
        for file in runtime_files()
    }
    texts = {name.removesuffix(".__init__"): text for name, text in texts.items()}
    assert len(texts) > 100
    TopologicalSorter(import_graph(texts)).prepare()  # raises CycleError
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph({"a": "import b", "b": "from a import f"})).prepare()


def test_the_rules_see_a_wrong_import() -> None:
    assert layer_faults("plan", "from robomimic_ddp import group")
    assert layer_faults("wrap", "def f():\n    from robomimic_ddp.config.rlds_keys import DEFAULTS")
    assert layer_faults("api", "import robomimic_ddp.patches.engine")
    assert not layer_faults("api", "from robomimic_ddp import group, run")
    assert not layer_faults("rlds", "from robomimic_ddp.data.rlds.index.source import Source")


@pytest.mark.parametrize("file", runtime_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_heavy_imports_stay_where_they_belong(file: Path) -> None:
    part = part_of(file)
    for item in imports_of(file.read_text()):
        top = item.name.split(".")[0]
        place = f"{file.relative_to(ROOT)}:{item.line} imports {item.name}"
        if top in {"torch", "torchvision"}:
            assert part not in WITHOUT_TORCH, place
        if top in {"tensorflow", "tensorflow_datasets"}:
            assert part == "rlds" and not item.at_import, f"{place}: only inside functions of rlds/"
        if top == "robomimic":
            assert part == "train_rlds" or not item.at_import, f"{place}: no host at import time"
        if top == "libcst":
            pytest.fail(f"{place}: only patches/ edits source text")


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 lists no standard modules")
@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "patches").rglob("*.py")),
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_patches_import_libcst_and_errors_only(file: Path) -> None:
    allowed = ("robomimic_ddp.errors", "robomimic_ddp.patches", "libcst")
    for item in imports_of(file.read_text()):
        if item.name.split(".")[0] not in sys.stdlib_module_names:
            assert item.name.startswith(allowed), f"line {item.line} imports {item.name}"


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def heavy_modules(imports: str) -> set[str]:
    """The heavy packages among an interpreter's `-X importtime` lines."""
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in imports.splitlines()}
    return loaded & {"torch", "tensorflow", "tensorflow_datasets", "robomimic", "numpy"}


def test_import_loads_no_heavy_package() -> None:
    done = run_python("-X", "importtime", "-c", "import robomimic_ddp")
    assert done.returncode == 0, done.stderr
    assert heavy_modules(done.stderr) == set()
    assert heavy_modules(run_python("-X", "importtime", "-c", "import numpy").stderr) == {"numpy"}


def test_help_loads_no_heavy_package() -> None:
    done = run_python("-X", "importtime", "-m", "robomimic_ddp", "--help")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "apply" in done.stdout
    assert heavy_modules(done.stderr) == set()
