"""`--changed=REF`: only the tests that files changed since a commit need."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = "robomimic_ddp/"
NEEDS = {
    "": ("repository",),
    "patches/": ("fixers", "patches"),
    "robomimic_ddp/training/": ("ranks", "e2e/test_resume.py"),
    "robomimic_ddp/training/step/": ("parity",),
    "robomimic_ddp/monitoring/": ("ranks",),
    "robomimic_ddp/verify/": ("ranks/gradients", "faults"),
    "robomimic_ddp/data/sampling/": ("distributed", "ranks", "faults"),
    "robomimic_ddp/checkpoint/": ("ranks", "e2e/test_resume.py"),
    "robomimic_ddp/distributed/": ("ranks", "faults", "parity"),
    "robomimic_ddp/data/rlds/": ("rlds", "e2e/rlds"),
    "robomimic_ddp/config/": ("commands", "bad_input"),
    "robomimic_ddp/cli.py": ("commands", "bad_input"),
    "robomimic_ddp/commands/evaluate/": ("evaluate",),
    "robomimic_ddp/commands/launch/": ("nodes", "e2e/test_launcher.py"),
    "scripts/": ("scripts", "bad_input/test_scripts.py"),
    "scripts/train_slurm.sbatch": ("e2e/test_launcher.py", "slurm"),
    "docs/": ("e2e/docs/test_docs.py",),
    "docs/nodes.md": ("slurm",),
    "docs/sweep.md": ("slurm",),
    "README.md": ("e2e/docs/test_docs.py",),
}
"""How the path of a changed file begins -> files and folders of tests/, besides those of its room:
tests/data of robomimic_ddp/data/.
"""


def needed(changed: Iterable[str]) -> set[str]:
    """Return files and folders of tests/ for changed files, all as paths from the checkout."""
    found = set()
    for path in changed:
        found |= {
            f"tests/{test}" for start in NEEDS if path.startswith(start) for test in NEEDS[start]
        }
        room, *rest = path.removeprefix(ROOMS).split("/")
        if path.startswith(ROOMS) and rest:
            found.add(f"tests/{room}")
        if path.startswith("tests/"):
            is_test = path.endswith(".py") and Path(path).name.startswith("test_")
            found.add(path if is_test else str(Path(path).parent))  # others of the folder use it
    return {test for test in found if (ROOT / test).exists()}


def changed_since(ref: str) -> list[str]:
    """Return the files that differ from the last commit that this branch shares with `ref`, and
    those that git does not know.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            why = done.stderr.strip() or "it shares no commit with this branch"
            raise pytest.UsageError(f"--changed={ref}: {why}")
        return done.stdout.splitlines()

    (shared,) = git("merge-base", ref, "HEAD")
    return git("diff", "--name-only", shared) + git("ls-files", "--others", "--exclude-standard")


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "only tests that files changed since this commit need, such as HEAD or main"
    parser.addoption("--changed", metavar="REF", help=what)


def pytest_report_header(config: pytest.Config) -> list[str]:
    ref = config.getoption("--changed")
    return [f"changed since {ref}, so: {', '.join(sorted(_tests(ref)))}"] if ref else []


@functools.lru_cache(maxsize=1)
def _tests(ref: str) -> set[str]:
    return needed(changed_since(ref))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ref = config.getoption("--changed")
    if ref is None:
        return
    places = [{str(path) for path in (item.path, *item.path.parents)} for item in items]
    wanted = {str(ROOT / test) for test in _tests(ref)}
    left_out = [item for item, place in zip(items, places) if not place & wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, place in zip(items, places) if place & wanted]
