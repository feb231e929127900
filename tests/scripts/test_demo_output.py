"""What the demo shows of its programs' output, what its logs keep, and its last words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.errors import DataError
from scripts.demo.job import Job, exit_code_of
from scripts.demo.summary import in_words

TALKS = """
import sys
print("mode: ddp")
for number in range(1, 200):
    print("the host's line", number)
print("mode: ddp")
print("bar 10%", end="\\r", file=sys.stderr)
print("epoch 1: step 2/2, 1.2e+03 steps/s, loss 1, ETA 0:00:01, lr 2", flush=True)
sys.exit(int(sys.argv[1]))
"""
SUMMARY = {
    "checkpoint": "run/last.pth",
    "world_size": 2,
    "steps": 40,
    "samples_per_step": 32,
    "first_loss": 1.234,
    "last_loss": 0.05,
    "success_before": 0.01,
    "success_after": 0.94,
    "gradients_equal": True,
    "noise_differs": True,
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "talks.py").write_text(TALKS)
    return Job(tmp_path / "root", 2, {"training": "trains"})


def test_the_terminal_has_progress_and_the_log_everything(job: Job, capfd: Any) -> None:
    job.step("training", lambda: job.python("talks", 0))
    out, error = capfd.readouterr()
    assert out.splitlines()[1:-1] == [
        "=== training: trains ===",
        "mode: ddp",
        "epoch 1: loss 1, lr 2",
    ]
    log = (job.root / "logs" / "training.log").read_text()
    assert "the host's line 199" in log and log.count("mode: ddp") == 2 and error == ""
    job.python("talks", 0)  # outside a step
    assert "the host's line 199" in capfd.readouterr().out


def test_a_failure_shows_the_end_of_its_own_log_and_the_path(job: Job, capfd: Any) -> None:
    job.step("training", lambda: job.python("talks", 0))
    earlier = (job.root / "logs" / "training.log").read_bytes()
    assert exit_code_of(job.root, lambda: job.step("training", lambda: job.python("talks", 3))) == 1
    error = capfd.readouterr().err
    log = job.root / "logs" / "training.log"
    assert "the host's line 199" in error and "the host's line 100\n" not in error
    assert f"talks ended with exit code 3, see above and {log}." in error
    assert log.read_bytes() == 2 * earlier  # a second run adds to it
    with pytest.raises(DataError, match="exit code 3, see above"):
        job.python("talks", 3)


def test_the_last_words_say_what_was_shown_and_what_to_do_next(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "policy.gif").touch()
    assert exit_code_of(tmp_path, lambda: SUMMARY) == 0
    assert json.loads((tmp_path / "summary.json").read_text()) == SUMMARY
    out = capsys.readouterr().out
    assert "=== done in 0 min 0 s ===" in out
    assert "succeeds in 1% of new episodes before training, in 94% after." in out
    assert "2 ranks trained it in 40 steps" in out and "Loss: 1.23, at the end 0.05" in out
    assert "They proved that their gradients are equal" in out
    assert str(tmp_path / "policy.gif") in out and "curves.png\n    ch" not in out
    assert "robomimic-ddp apply ~/my_robomimic" in out
    alone = {**SUMMARY, "world_size": 1, "gradients_equal": None, "noise_differs": None}
    assert "One rank trained it in" in in_words(tmp_path, alone)
    assert "proved" not in in_words(tmp_path, alone)
