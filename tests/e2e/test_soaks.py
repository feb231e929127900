"""The soaks in short; `scripts/run_soak.py --runs 50` and `scripts/kill_soak.py --kills 100` are
the long versions.
"""

from __future__ import annotations

import re
import sys

import pytest

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
