"""The soak in short; `scripts/kill_soak.py --kills 100` is the long version."""

from __future__ import annotations

import re
import sys

import pytest

from tests.hosts import ROOT, require_clean, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_two_kills_at_random_moments() -> None:
    words = (ROOT / "scripts" / "kill_soak.py", "--kills", 2, "--kills-per-run", 2)
    result = run(None, sys.executable, *words, timeout=1100)
    require_clean(result)
    figures = re.search(r"(\d+) kills, (\d+) runs, (\d+) equal to the bit", result.stdout)
    kills, runs, equal = map(int, figures.groups())
    assert kills == 2 and equal == runs >= 1
