"""Fixtures of the whole suite: ranks in a worker pool, and a guard against leaks between tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.ranks.pool import RankPool

# No deadline: a test that fails because the machine is busy teaches nothing.
settings.register_profile("suite", deadline=None, print_blob=True)
settings.load_profile("suite")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders in one order, however they are named on the command line: the rank pool's workers
    import a host once, and the edited one (faults, parity) has to come before the installed one.
    """
    items.sort(key=lambda item: item.path.parent)
