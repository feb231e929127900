"""`robomimic-ddp bench data`: its rows and counts; times are never asserted."""

from __future__ import annotations

import json

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import data, data_memory, data_targets
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


def test_all_rows_and_what_they_count(folder, capsys):
    file, picture = folder / "rows.json", folder / "rows.png"
    sizes = ("--sizes", "20x36:12x16", "--worlds", "1", "3")
    words = ("--data", str(folder), "--json", str(file), "--plot", str(picture), "--fast-decode")
    assert cli.main(["bench", "data", *SMALL, *sizes, *words]) == 0
    rows = json.loads(file.read_text())
    expected = [(n, w) for w in (1, 3) for n in (*data.LOADERS, "ours_fast_decode")]
    assert [(row["loader"], row["world"]) for row in rows] == expected
    for row in rows:
        assert set(row) > KEYS and all(row[key] > 0 for key in KEYS - {"loader"})
        assert (row["stored"], row["target"], row["filter"]) == ([20, 36], [12, 16], "bilinear")
        if row["loader"] == "skipping" and row["world"] > 1:
            assert 1 < row["decoded_over_delivered"] <= 3
        else:
            assert row["decoded_over_delivered"] == 1.0
        assert 50 < row["peak_rss_mb"] < 10_000
    assert picture.stat().st_size > 5_000
    text = capsys.readouterr().out
    assert "stored 20x36" in text and "target 12x16" in text and "bilinear" in text
    assert "reached  frames decoded / delivered, worlds 1, 3: 1 (" in text
    assert "ours / host_shaped" in text and "jpeg_limit / ours" in text


def test_memory_over_many_batches(folder, capsys):
    file = folder / "memory.json"
    words = ("--memory", "--batches", "40", "--data", str(folder), "--json", str(file))
    assert cli.main(["bench", "data", *SMALL, *words]) == 0
    (row,) = json.loads(file.read_text())
    assert len(row["rss_mb"]) == data_memory.MARKS and row["passes"] >= 3
    assert row["is_flat"] == (row["growth_mb"] <= data_memory.MOST_GROWTH_MB)
    assert "after       40 batches" in capsys.readouterr().out


def turns(speed, cost, decoded=1.0):
    start = {"first_batch_seconds": 1.0}
    turn = {"wall": 1.0, "frames": speed, "cpu": cost, "cpu_frames": 1, "peak_rss_mb": 1.0}
    return [start, {**turn, "decoded_over_delivered": decoded}]


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
    [("--rounds", "-1"), ("--batch", "0"), ("--sizes", "8:8"), ("--worlds", "0"),
     ("--episodes", "1", "--steps", "2")],
)  # fmt: skip
def test_usage(words, capsys):
    assert cli.main(["bench", "data", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_a_process_that_cannot_begin_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "WORKER", "robomimic_ddp.bench.nothing")
    job = data.DataJob(str(tmp_path), (8, 8), (8, 8), 2, 2, 1, 1, 1, 1)
    with pytest.raises(ConfigError, match="No module named robomimic_ddp.bench.nothing"):
        data.measure(job, [1], 1, 0.01)
