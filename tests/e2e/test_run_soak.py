"""Five jobs in a row end well; `scripts/run_soak.py --runs 50` is the long version."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from scripts import run_soak
from tests.hosts import ROOT, require_clean, run

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_five_runs_in_a_row_end_well() -> None:
    script = ROOT / "scripts" / "run_soak.py"
    result = run(None, sys.executable, script, "--runs", 5, timeout=1100)
    require_clean(result)
    assert "5 runs, 5 ended well" in result.stdout, result


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
