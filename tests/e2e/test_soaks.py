"""The soaks in short; `scripts/run_soak.py --runs 50` and `scripts/kill_soak.py --kills 100` are
the long versions.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
from pathlib import Path

import pytest

from scripts import run_soak
from tests.hosts import ROOT, require_clean, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


def soak(name: str, *words: object) -> str:
    result = run(None, sys.executable, ROOT / "scripts" / f"{name}.py", *words, timeout=1100)
    require_clean(result)
    return result.stdout


def test_five_runs_in_a_row_end_well() -> None:
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    assert "5 runs, 5 ended well" in soak("run_soak", "--runs", 5)


def test_two_kills_at_random_moments() -> None:
    text = soak("kill_soak", "--kills", 2, "--kills-per-run", 2)
    figures = re.search(r"(\d+) kills, (\d+) runs, (\d+) equal to the bit", text)
    kills, runs, equal = map(int, figures.groups())
    assert kills == 2 and equal == runs >= 1


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is elsewhere")
def test_only_what_nobody_uses_counts_as_left(tmp_path: Path) -> None:
    semaphore = multiprocessing.get_context("spawn").Semaphore(1)
    ours = f"sem.{semaphore._semlock.name.lstrip('/')}"
    left = run_soak.SHARED_MEMORY / f"left-{tmp_path.name}"
    left.write_bytes(b"of a process that is gone")
    try:
        assert (run_soak.SHARED_MEMORY / ours).exists()
        found = run_soak.traces()
        assert (
            f"left in /dev/shm: {left.name}" in found and f"left in /dev/shm: {ours}" not in found
        )
    finally:
        left.unlink()
