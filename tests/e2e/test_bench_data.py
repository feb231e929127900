"""`robomimic-ddp bench data`: its rows and counts; times are never asserted."""

from __future__ import annotations

import json
import sys

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import data, data_command, data_memory, data_targets
from robomimic_ddp.errors import ConfigError

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
KEYS = {
    *("loader", "world", "frames_per_second", "cpu_seconds_per_1000_frames"),
    *("decoded_over_delivered", "peak_rss_mb", "first_batch_seconds"),
}
SMALL = ("--quick", "--episodes", "6", "--steps", "12", "--batch", "4", "--buffer", "8")
SMALL += ("--seconds", "0.01", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.mark.slow
def test_all_rows_and_what_they_count(folder, capsys):
    file, picture = folder / "rows.json", folder / "rows.png"
    sizes = ("--sizes", "20x36:12x16:bilinear", "24x24:24x24", "--worlds", "1", "3")
    words = ("--data", str(folder), "--json", str(file), "--plot", str(picture), "--fast-decode")
    assert cli.main(["bench", "data", *SMALL, *sizes, *words]) == 0
    rows = json.loads(file.read_text())
    of_a_size = [(n, w) for w in (1, 3) for n in (*data.LOADERS, data.FAST)]
    assert [(row["loader"], row["world"]) for row in rows] == of_a_size * 2
    for row in rows:
        assert set(row) > KEYS and all(row[key] > 0 for key in KEYS - {"loader"})
        if row["loader"] == "skipping" and row["world"] > 1:
            assert 1 < row["decoded_over_delivered"] <= 3
        else:
            assert row["decoded_over_delivered"] == 1.0
        assert 50 < row["peak_rss_mb"] < 10_000
    places = [(row["stored"], row["target"], row["filter"]) for row in rows]
    half = len(rows) // 2
    assert places[:half] == [([20, 36], [12, 16], "bilinear")] * half
    assert places[half:] == [([24, 24], [24, 24], "lanczos3")] * half
    assert picture.stat().st_size > 5_000
    text = capsys.readouterr().out
    assert "stored 20x36" in text and "target 12x16" in text and "filter bilinear" in text
    assert "filter lanczos3 (the identity" in text
    assert "reached  frames decoded / delivered, worlds 1, 3: 1 (" in text
    assert "ours / host_shaped" in text and "jpeg_limit / ours" in text


@pytest.mark.slow
def test_memory_over_many_batches(folder, capsys):
    file = folder / "memory.json"
    words = ("--memory", "--batches", "40", "--data", str(folder), "--json", str(file))
    assert cli.main(["bench", "data", *SMALL, *words]) == 0
    (row,) = json.loads(file.read_text())
    assert len(row["rss_mb"]) == data_memory.MARKS and row["passes"] >= 3
    assert row["is_flat"] == (row["growth_mb"] <= data_memory.MOST_GROWTH_MB)
    assert "after       40 batches" in capsys.readouterr().out


def test_octo_that_is_not_there_is_one_clear_error(monkeypatch, capsys):
    for name in ("octo", "dlimp"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["bench", "data", "--octo", *SMALL]) != 0
    error = capsys.readouterr().err
    assert "--octo: Python does not find octo and dlimp" in error and "PYTHONPATH" in error


def turns(speed, cost, decoded=1.0):
    start = {"first_batch_seconds": 1.0}
    turn = {"wall": 1.0, "frames": speed, "cpu": cost, "cpu_frames": 1, "peak_rss_mb": 1.0}
    return [start, {**turn, "decoded_over_delivered": decoded}]


def test_rows_are_written_after_each_size(tmp_path, monkeypatch):
    """What was measured is not lost with what comes after it."""
    file = tmp_path / "rows.json"

    def second_fails(job, *rest):
        if job.stored == (8, 8):
            raise ConfigError("stopped here")
        return {(loader, 1): turns(1, 1.0) for loader in data.LOADERS}

    monkeypatch.setattr(data, "measure", second_fails)
    monkeypatch.setattr(data_command, "bytes_per_frame", lambda job: 1.0)
    words = ("--sizes", "16x16:16x16", "8x8:8x8", "--worlds", "1")
    assert cli.main(["bench", "data", *SMALL, *words, "--json", str(file)]) != 0
    rows = json.loads(file.read_text())
    assert [row["loader"] for row in rows] == list(data.LOADERS)
    assert {tuple(row["stored"]) for row in rows} == {(16, 16)}


def test_targets_are_judged_by_their_bounds():
    measured = {
        ("ours", 1): turns(100, 1.0), ("host_shaped", 1): turns(20, 4.0),
        ("jpeg_limit", 1): turns(140, 0.6), ("ours", 8): turns(80, 1.0, 1.5),
        ("skipping", 8): turns(2, 19.0),
    }  # fmt: skip
    found = {target.name: target for target in data_targets.targets(measured)}
    reached = {name: (target.median, target.is_reached) for name, target in found.items()}
    assert reached == {
        "frames decoded / delivered, worlds 1, 8": (1.5, False),
        "frames/s of a rank, world 8 / world 1": (0.8, False),
        "CPU s per frame, ours / host_shaped, world 1": (0.25, True),
        "CPU s per frame, ours / skipping, world 8": (1 / 19, False),
        "CPU s per frame, ours / jpeg_limit, world 1": (1 / 0.6, False),
        "frames/s, jpeg_limit / ours, world 1": (1.4, True),
    }
    lines = [target.line() for target in found.values()]
    assert sum(line.startswith("MISSED") for line in lines) == 4


@pytest.mark.parametrize(
    "words",
    [("--rounds", "-1"), ("--batch", "0"), ("--sizes", "8:8"), ("--sizes", "8x8:8x8:box"),
     ("--worlds", "0"), ("--episodes", "1", "--steps", "2")],
)  # fmt: skip
def test_usage(words, capsys):
    assert cli.main(["bench", "data", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_a_process_that_cannot_begin_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "WORKER", "robomimic_ddp.bench.nothing")
    job = data.DataJob(str(tmp_path), (8, 8), (8, 8), 2, 2, 1, 1, 1, 1)
    with pytest.raises(ConfigError, match="No module named robomimic_ddp.bench.nothing"):
        data.measure(job, [1], 1, 0.01)
