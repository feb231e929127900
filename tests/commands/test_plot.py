"""`robomimic-ddp plot`: what the x axis counts, and what is drawn of each run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from robomimic_ddp import cli
from robomimic_ddp.commands import figures, plot
from robomimic_ddp.errors import EXIT_DONE


def history(folder: Path, samples: int, epochs: int = 4) -> str:
    """Epochs of 10 steps with `samples` in each, in 1800 s, and as long for validation."""
    folder.mkdir(parents=True)
    lines = []
    for epoch in range(1, epochs + 1):
        log = {"Loss": 1.0 + epoch % 2, "Optimizer/policy0_lr": 1e-4}
        record = {"epoch": epoch, "steps": 10, "seconds": 1800.0, "log": log}
        speed = {"samples": 10 * samples, "samples_per_second": 10 * samples / 1800.0}
        lines += [{**record, **speed, "phase": "train"}, {**record, "phase": "valid"}]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """(x, y, style) of all curves."""
    curves, real = [], Axes.plot

    def record(self, x, y, *words, **style):
        curves.append((list(x), list(y), style))
        return real(self, x, y, *words, **style)

    monkeypatch.setattr(Axes, "plot", record)
    return curves


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ("epochs", [1, 2, 3, 4]),
        ("steps", [10, 20, 30, 40]),
        ("samples", [80, 160, 240, 320]),
        ("hours", [1, 2, 3, 4]),
    ],
)
def test_what_the_axis_counts(x, expected, drawn, tmp_path):
    run = history(tmp_path / "a" / "1", 8)
    assert cli.main(["plot", run, "-o", str(tmp_path / "a.png"), "--x", x]) == EXIT_DONE
    assert len(drawn) == 4 and all(at == pytest.approx(expected) for at, _, _ in drawn)


def test_runs_with_other_samples_in_a_step_are_compared_by_samples(drawn, tmp_path):
    runs = [history(tmp_path / name / "1", samples) for name, samples in (("a", 8), ("b", 32))]
    plot.plot(runs, str(tmp_path / "two.png"))
    assert {tuple(map(round, at)) for at, _, _ in drawn} == {
        (80, 160, 240, 320),
        (320, 640, 960, 1280),
    }
    drawn.clear()
    plot.plot([runs[0], runs[0]], str(tmp_path / "same.png"))
    assert {tuple(at) for at, _, _ in drawn} == {(1, 2, 3, 4)}


def test_one_infinite_loss_is_left_out(drawn, tmp_path):
    run = Path(history(tmp_path / "a" / "1", 8, epochs=30))
    lines = (run / "history.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    record["log"]["Loss"] = float("inf")
    lines[2] = json.dumps(record)
    (run / "history.jsonl").write_text("\n".join(lines))
    plot.plot([run], str(tmp_path / "a.png"))
    assert all(math.isfinite(value) for _, y, _ in drawn for value in y)


def test_a_run_that_has_not_finished_is_marked(drawn, tmp_path):
    """By its `ddp.json`; other runs are drawn as they are."""
    runs = [history(tmp_path / name / "1", 8) for name in ("whole", "part", "strange")]
    Path(runs[0], "ddp.json").write_text('{"outcome": {}}')
    Path(runs[1], "ddp.json").write_text('{"plan": {}}')
    plot.plot(runs, str(tmp_path / "a.png"))
    labels = {style["label"] for _, _, style in drawn if style.get("label")}
    assert labels == {"whole", "part (incomplete)", "strange"}


def test_runs_named_from_inside_their_folder_have_their_names(drawn, tmp_path, monkeypatch):
    first, second = (history(tmp_path / "lift" / name, 8) for name in ("1", "2"))
    monkeypatch.chdir(first)
    plot.plot([".", "../2"], str(tmp_path / "two.png"))
    assert [style["label"] for *_, style in drawn if style.get("label")] == ["lift/1", "lift/2"]


@pytest.mark.bad_input
def test_names_are_no_formulas(tmp_path):
    figure = figures.pyplot().figure()
    figure.suptitle(r"costs $\none$")
    figures.save(figure, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").exists()
