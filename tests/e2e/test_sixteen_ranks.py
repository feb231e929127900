"""Sixteen real ranks for a hundred steps, far more than the machine has cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.monitoring.records import history
from tests.configs import make_config, write_config
from tests.hosts import Host, Result, require_clean, require_finished, torchrun
from tests.runs import newest, run_directory, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

RANKS, EPOCHS, STEPS = 16, 4, 25
CHANGES = {
    "experiment": {"epoch_every_n_steps": STEPS},
    "train": {"num_epochs": EPOCHS, "batch_size": 2},
    "ddp": {"resume": "auto"},
}


def trained(host: Host, dataset: Path, folder: Path, plan: str) -> Result:
    folder.mkdir(exist_ok=True)
    file = write_config(folder / "bc.json", make_config("bc", dataset, folder / "runs", CHANGES))
    words = ("tests.e2e.entries.killed_train", plan, folder / "happened", "--config", file)
    return torchrun(host, *words, ranks=RANKS, timeout=800)


def test_sixteen_ranks_stopped_through_one_of_them_end_as_if_nothing_had_stopped_them(
    host_copy: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """One signal to one rank: all stop after the same step, one of them writes the files, and the
    same command resumes.
    """
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    require_clean(trained(host_copy, low_dim_dataset, through, "none"))
    first = trained(host_copy, low_dim_dataset, stopped, f"7@SIGUSR1:{EPOCHS * STEPS // 2 + 9}")
    assert first.returncode == 1 and not first.timed_out and not first.leftovers, first
    directory = run_directory(stopped / "runs")
    assert json.loads((directory / "requeue").read_text())["signal"] == "a signal to another rank"
    state: dict[str, Any] = newest(stopped)
    assert state["inside"]["epoch"] == 3 and len(state["ranks"]) == RANKS
    require_finished(trained(host_copy, low_dim_dataset, stopped, "none"))
    assert state_differences(newest(stopped), newest(through), ("/exp_avg", "/random/torch")) == []
    trained_epochs = [line for line in history.read(directory) if line["phase"] == "train"]
    assert [line["epoch"] for line in trained_epochs] == [1, 2, 3, 4]
    log = (directory / "logs" / "log.txt").read_text()
    assert all(log.count(f"\nTrain Epoch {epoch}\n") == 1 for epoch in range(1, EPOCHS + 1))
