"""The demo says how long it will take, as measured, and trains shorter where that is long."""

from __future__ import annotations

import argparse
import json

from scripts.demo import __main__ as demo
from scripts.demo import estimate
from scripts.demo.job import CHECKOUT, Job

FAST = {"import": 3.0, "episode": 0.06, "step": 0.05}
SLOW = {"import": 6.0, "episode": 0.2, "step": 0.4}
"""Two cores of a server, and a machine on which all of it would take a quarter of an hour."""


def options_of(root, *settings):
    config = CHECKOUT / "configs" / "demo.json"
    sizes = {"demonstrations": 300, "evaluations": 100}
    return argparse.Namespace(root=root, config=config, settings=list(settings), **sizes)


def announced(monkeypatch, root, speed, *settings, has_data=False):
    monkeypatch.setattr(estimate, "measured", lambda ranks: speed)
    return demo._announced(Job(root, 2), options_of(root, *settings), has_data)


def test_a_usual_machine_trains_all_epochs(monkeypatch, tmp_path, capsys):
    assert announced(monkeypatch, tmp_path, FAST) == 20
    said = capsys.readouterr().out
    assert "takes about 4 min here, 7 min and more if " in said and ": host 5 s, data " in said
    assert "that is" not in said


def test_a_slow_one_trains_fewer_and_says_so(monkeypatch, tmp_path, capsys):
    epochs = announced(monkeypatch, tmp_path, SLOW)
    assert estimate.FEWEST_EPOCHS <= epochs < 20
    said = capsys.readouterr().out
    assert f"with {epochs} epochs: all 20 would take" in said and "train.num_epochs=20)" in said
    # A second run keeps the number, whatever it would measure: else its training began again.
    assert announced(monkeypatch, tmp_path, FAST) == epochs and capsys.readouterr().out == ""
    assert announced(monkeypatch, tmp_path, SLOW, "train.num_epochs=20") == 20
    assert json.loads((tmp_path / "epochs.json").read_text()) == epochs


def test_epochs_fit_the_budget_and_are_enough_to_learn():
    seconds = {"data": 100.0, "training": 1000.0}
    assert estimate.epochs_within(seconds, 20, budget=850) == 15
    assert estimate.epochs_within(seconds, 20, budget=90) == estimate.FEWEST_EPOCHS
    assert estimate.epochs_within(seconds, 4, budget=90) == 4
    assert estimate.epochs_within(seconds, 20, budget=6000) == 20
