"""The best checkpoint of an evaluation: what counts in the record, and epochs that are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from robomimic_ddp.commands.evaluate import checkpoints, record
from robomimic_ddp.monitoring.records import evaluation

SUCCESS = evaluation.SUCCESS


def checkpoint(
    run: Path, epoch: int, shown: str | None = None, **config: object
) -> checkpoints.Checkpoint:
    """A checkpoint whose file has its epoch's name, or the name `shown`."""
    shown = shown or f"models/{epoch}.pth"
    (run / "models").mkdir(exist_ok=True)
    (run / shown).write_text(str(epoch))
    return checkpoints.Checkpoint(shown, (shown, 1, 1), epoch, f"weights {epoch}", (), config)


def best_after(
    run: Path, epoch: int, episodes: int = 10, shown: str | None = None, **rates: float | None
) -> str | None:
    """What best_success.pth has after a result for each environment of `rates`, or None if there is
    no such file. By then the file that was evaluated has changed. A rate of None: of no success.
    """
    evaluated = checkpoint(run, epoch, shown)
    copy = run / "copy.pth"
    copy.write_text((run / evaluated.shown).read_text())
    (run / evaluated.shown).write_text("trained again")
    common = {"kind": "result", "epoch": epoch, "weights": evaluated.weights}
    for env, rate in rates.items():
        log = {"Return": 1.0} if rate is None else {SUCCESS: rate}
        result = {"env": env, "episodes": episodes, "checkpoint": "a", "interval": None, "log": log}
        evaluation.append(run, {**common, **result})
    record.keep_best(run, evaluated, copy)
    copy.unlink(missing_ok=True)
    best = run / checkpoints.BEST_SUCCESS
    return best.read_text() if best.is_file() else None


def test_the_best_has_the_largest_mean_over_its_environments(tmp_path):
    assert best_after(tmp_path, 1, lift=None) is None
    assert best_after(tmp_path, 2, lift=0.9, stack=0.1) == "2"
    assert best_after(tmp_path, 3, lift=0.6, stack=0.6) == "3"
    assert best_after(tmp_path, 4, lift=0.5, stack=0.6, turn=0.6) == "3"
    assert best_after(tmp_path, 5, lift=None) == "3"


def test_the_best_is_the_newest_of_equals_and_last_pth_may_be_it(tmp_path):
    best_after(tmp_path, 1, lift=0.5)
    assert best_after(tmp_path, 2, lift=0.5) == "2"
    assert best_after(tmp_path, 0, lift=0.5) == "2"  # a backlog is played from its end
    assert best_after(tmp_path, 3, shown="last.pth", lift=0.6) == "3"
    assert best_after(tmp_path, 4, lift=0.7) == "4"


def test_results_of_less_than_half_the_episodes_do_not_count(tmp_path):
    best_after(tmp_path, 1, lift=0.5)
    assert best_after(tmp_path, 2, episodes=4, lift=1.0) == "1"
    assert best_after(tmp_path, 3, episodes=5, lift=0.9) == "3"
    assert best_after(tmp_path, 4, lift=0.8) == "3"


def test_the_newest_result_counts_and_lines_of_episodes_do_not(tmp_path):
    best_after(tmp_path, 2, lift=0.9)
    episode = {"kind": "episode", "epoch": 2, "weights": "weights 2", "env": "lift", "episode": 0}
    evaluation.append(tmp_path, {**episode, "log": {SUCCESS: 1.0}})
    best_after(tmp_path, 2, lift=0.3)
    assert best_after(tmp_path, 1, lift=0.4) == "1"
    results = evaluation.results(tmp_path)
    assert [(line["epoch"], line["log"][SUCCESS]) for line in results] == [(1, 0.4), (2, 0.3)]


def test_a_cut_line_is_removed_and_other_lines_stay(tmp_path):
    evaluation.drop_cut_line(tmp_path)
    assert evaluation.read(tmp_path) == []
    path = tmp_path / "evaluation.jsonl"
    for content, left in (("a\nb\n", "a\nb\n"), ("a\nb", "a\n"), ("a", "")):
        path.write_text(content)
        evaluation.drop_cut_line(tmp_path)
        assert path.read_text() == left


@pytest.mark.bad_input
def test_a_best_that_cannot_be_written_leaves_nothing(tmp_path, capsys):
    (tmp_path / checkpoints.BEST_SUCCESS / "full").mkdir(parents=True)
    assert best_after(tmp_path, 1, lift=0.5) is None
    assert "best_success.pth could not be written" in capsys.readouterr().err
    names = {"models", evaluation.FILE_NAME, checkpoints.BEST_SUCCESS}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_result_has_the_means_of_its_episodes():
    same = {"epoch": 3, "weights": "w", "env": "lift"}
    episodes = [{**same, "log": {SUCCESS: rate, "Return": 4 * rate}} for rate in (0.0, 1.0, 0.5)]
    result = record.result(episodes)
    assert result["log"] == {SUCCESS: 0.5, "Return": 2.0}
    assert result["interval"] == record.wilson(1.5, 3)
    expected = {**same, "kind": "result", "episodes": 3}
    assert {name: result[name] for name in expected} == expected
    assert record.result([{**same, "log": {"Return": 1.0}}])["interval"] is None


def test_a_result_has_a_row_in_the_table():
    log = {SUCCESS: 0.5, "Return": 2.0}
    result = {"epoch": 3, "env": "lift", "episodes": 4, "interval": (0.25, 0.75), "log": log}
    row = record.cells({**result, "checkpoint": "last.pth", "lost": [1, 2]})
    assert dict(zip(record.HEAD, row, strict=True)) == {
        "epoch": "3",
        "environment": "lift",
        "episodes": "4 (2 left out)",
        "success": "50.0%",
        "95 %": "25.0% to 75.0%",
        "return": "2",
        "horizon": "-",
        "checkpoint": "last.pth",
    }


@pytest.mark.parametrize(
    ("rollout", "due"),
    [
        ({"rate": 30, "warmstart": 60}, [90, 120]),
        ({"rate": 0, "warmstart": 60}, [61, 90, 120]),
        ({"rate": True}, [1, 30, 60, 61, 90, 120]),
        ({}, [1, 30, 60, 61, 90, 120]),
    ],
)
def test_epochs_that_training_would_play(rollout, due, tmp_path):
    epochs = (0, 1, 30, 60, 61, 90, 120)
    config = {"experiment": {"rollout": rollout}, "train": {"num_epochs": 90}}
    found = [checkpoint(tmp_path, epoch, **config) for epoch in epochs]
    assert [one.epoch for one in found if one.is_due] == due
    assert [one.epoch for one in found if one.is_last_epoch] == [90, 120]
    assert not checkpoint(tmp_path, 5, train={}).is_last_epoch
