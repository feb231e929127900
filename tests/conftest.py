"""Fixtures of the whole suite: ranks in a worker pool, and a guard against leaks between tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from robomimic_ddp.data.rlds.tf_import import keep_triton_first
from tests.ranks.pool import RankPool

# No deadline: a test that fails because the machine is busy teaches nothing.
settings.register_profile("suite", deadline=None, print_blob=True)
settings.load_profile("suite")

GPUS = "ROBOMIMIC_TEST_GPUS"
"""The first GPU that this command may use, as CUDA_VISIBLE_DEVICES names it: tests/gpu start their
programs with it. All else sees none, and gives the same results on every machine.
"""
if GPUS not in os.environ:  # workers of xdist inherit it
    os.environ[GPUS] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
os.environ["CUDA_VISIBLE_DEVICES"] = ""
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and then by jobs, too
os.environ["USE_TF"] = "0"  # as in tests/hosts.py: only what reads RLDS imports TensorFlow

keep_triton_first()  # whichever test imports TensorFlow: optimizers import triton

GUARDED_PREFIXES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "TORCHELASTIC_",
    "ROBOMIMIC_DDP_",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONPATH",
)
"""Variables that decide how we behave: one left behind would change the tests that follow."""


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Runs functions on several gloo CPU ranks; see tests/ranks/pool.py."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves launcher variables, a process group or another folder behind."""
    before = _guarded_state()
    yield
    after = _guarded_state()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail("the test left a process group behind")
    assert after == before, "the test left launcher variables or the working folder changed"


def _guarded_state() -> dict[str, str]:
    state = {name: text for name, text in os.environ.items() if name.startswith(GUARDED_PREFIXES)}
    state["cwd"] = os.getcwd()
    return state


TESTS = Path(__file__).parent
FIRST = ("pretend_cuda", "e2e", "faults", "parity", "rlds", "bad_input", "ranks")
"""Folders in the order in which xdist deals out their files, those with real jobs (marked e2e) from
every folder before: long ones first, so that no core waits for a long one at the end.
"""


def pytest_configure() -> None:
    """A shell that starts the tests in the background has SIGINT ignored in all that they start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders files as `FIRST` says, and leaves tests marked slow to --all, or to a command that
    names their file.
    """
    items.sort(key=_place)
    if config.getoption("--all"):
        return
    named = {Path(word.split("::")[0]).name for word in config.invocation_params.args if word}
    slow = [item for item in items if item.get_closest_marker("slow")]
    left_out = [item for item in slow if item.path.name not in named]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _place(item: pytest.Item) -> tuple[bool, int]:
    marks, folder = getattr(item.module, "pytestmark", []), item.path.relative_to(TESTS).parts[0]
    jobs = any(mark.name == "e2e" for mark in (marks if isinstance(marks, list) else [marks]))
    return not jobs, FIRST.index(folder) if folder in FIRST else len(FIRST)
