"""Five jobs in a row end well; `scripts/run_soak.py --runs 50` is the long version."""

from __future__ import annotations

import sys

import pytest

from tests.hosts import ROOT, require_clean, run

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_five_runs_in_a_row_end_well() -> None:
    script = ROOT / "scripts" / "run_soak.py"
    result = run(None, sys.executable, script, "--runs", 5, timeout=1100)
    require_clean(result)
    assert "5 runs, 5 ended well" in result.stdout, result
