"""`robomimic-ddp bench`: its rows, and that its variants compute the same."""

from __future__ import annotations

import json
import statistics

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import ranks, step, worker
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


def test_several_ranks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PACKAGES", {"accelerate": "no_such_package"})
    monkeypatch.setattr(ranks, "_LEAST_REPEATS", 1)
    monkeypatch.setattr(ranks, "_WARM_UP", 1)
    file = tmp_path / "rows.json"
    words = ["--ranks", "2", "--rounds", "1", "--batch", "2", "--down-dims", "16,32"]
    words += ["--beside", "host,tutorial_ddp,accelerate"]
    assert cli.main(["bench", "step", *words, "--json", str(file)]) == 0
    ours, host, tutorial, accelerate = json.loads(file.read_text())
    assert [row["variant"] for row in (ours, host, tutorial)] == ["ours", "host", "tutorial_ddp"]
    assert [row["world"] for row in (ours, host, tutorial)] == [2, 1, 2]
    assert accelerate["skipped"] == "no_such_package is not installed"
    for row in (ours, host, tutorial):
        assert set(row) >= KEYS and row["parameters"] == ours["parameters"] < 1e6
        assert row["samples_per_second"] == pytest.approx(
            2 * row["world"] * row["steps_per_second"]
        )
    parameters = ours["parameters"] * 4 / 1e6
    assert ours["tensor_mb"] == pytest.approx(
        {
            "parameters": parameters,
            "averaged copy": parameters,
            "gradients": parameters,
            "moments": 2 * parameters,
            "buckets": 0,
        },
        rel=0.01,
    )
    assert sum(ours["tensor_mb"].values()) <= 0.75 * sum(tutorial["tensor_mb"].values())
    assert 0 <= ours["comm_share"] < 1 and 0 < ours["reducing_share"] < 1
    assert host["comm_share"] == 0 and 0 <= tutorial["overlap"] <= 1
    assert tutorial["ours_step_time_over_its"]["pairs"] == 1
    text = capsys.readouterr().out
    assert "accelerate                 skipped" in text and "pip install" in text
    assert "tensor bytes of ours over two DDP nets with a deep copy: 0.7" in text
    assert "all-reduces lengthen a step by" in text


def test_time_that_ranges_cover_is_counted_once():
    assert worker.covered([(0.0, 1.0), (0.5, 2.0), (0.6, 0.7), (3.0, 4.0)]) == 3.0
    assert worker.covered([]) == 0.0


def test_intervals_hold_the_median():
    values = [1.0, 1.1, 1.2, 5.0, 1.15, 1.05, 0.9]
    low, high = step.interval(values)
    assert low <= statistics.median(values) <= high and high < 5.0
    assert step.interval([2.0] * 9) == (2.0, 2.0)


def test_a_worker_that_cannot_begin_is_an_error(monkeypatch):
    monkeypatch.setattr(step, "WORKER", "robomimic_ddp.bench.nothing")
    with pytest.raises(ConfigError, match="No module named robomimic_ddp.bench.nothing"):
        step.measure(step.Job(2, 1), 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", "-1"),
        ("--batch", "0"),
        ("--threads", "0"),
        ("--ranks", "0"),
        ("--down-dims", "16,many"),
        ("--beside", "keras", "--ranks", "2"),
        ("--option", "comm=fast"),
    ],
)
def test_usage(words, capsys):
    assert cli.main(["bench", "step", *words]) == 2
    assert words[0] in capsys.readouterr().err
