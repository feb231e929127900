"""`robomimic-ddp bench`: its rows, and that its variants compute the same."""

from __future__ import annotations

import json
import statistics

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import step
from robomimic_ddp.errors import ConfigError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
KEYS = {
    *("variant", "world", "options", "steps_per_second", "samples_per_second", "peak_rss_mb"),
    *("comm_share", "parameters", "cpu_seconds_per_step"),
}


def test_a_round(tmp_path, capsys, monkeypatch):
    kept = []
    measure = step.measure
    monkeypatch.setattr(step, "measure", lambda *given: kept.append(measure(*given)) or kept[0])
    file = tmp_path / "rows.json"
    assert cli.main(["bench", "step", "--rounds", "1", "--batch", "2", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [row["variant"] for row in rows] == list(step.VARIANTS)
    assert all(set(row) == KEYS and row["world"] == 1 for row in rows)
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    for row in rows:
        assert row["samples_per_second"] == pytest.approx(2 * row["steps_per_second"])
        assert row["peak_rss_mb"] > 100
    host, safe, ours = (kept[0][name].losses for name in step.VARIANTS)
    assert host == safe, "safe is the host's own arithmetic"
    assert ours == pytest.approx(host, rel=1e-4) and len(host) == 3
    text = capsys.readouterr().out
    assert "times the host's steps per second by the clock" in text and "M parameters" in text


def test_intervals_hold_the_median():
    values = [1.0, 1.1, 1.2, 5.0, 1.15, 1.05, 0.9]
    low, high = step.interval(values)
    assert low <= statistics.median(values) <= high and high < 5.0
    assert step.interval([2.0] * 9) == (2.0, 2.0)


def test_a_worker_that_cannot_begin_is_an_error(monkeypatch):
    monkeypatch.setattr(step, "WORKER", "robomimic_ddp.bench.nothing")
    with pytest.raises(ConfigError, match="No module named robomimic_ddp.bench.nothing"):
        step.measure(step.Job(2, 1), 1)


@pytest.mark.parametrize("words", [("--rounds", "-1"), ("--batch", "0"), ("--threads", "0")])
def test_usage(words, capsys):
    assert cli.main(["bench", "step", *words]) == 2
    assert words[0] in capsys.readouterr().err
