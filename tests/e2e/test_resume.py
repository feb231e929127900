"""A run that was killed or stopped ends as the uninterrupted one: bits, not losses, are compared.

Low-dim diffusion policy with EMA, validation and a schedule, four epochs of three steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.checkpoint import PREVIOUS, STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.config import env
from tests.hosts import Host, Result, require_clean, require_finished, torchrun
from tests.runs import newest, run_directory, scalars, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KILLED = "tests.e2e.entries.killed_train"


def killed(host: Host, folder: Path, config: Path, plan: str, *more: str, **options: Any) -> Result:
    """One job with planned kills; what has happened already is remembered in the folder."""
    arguments = (plan, folder / "happened", "--config", config, *more)
    return torchrun(host, KILLED, *arguments, **options)


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, host_copy: Host, four_epochs: Any
) -> dict[str, Any]:
    """The last state of the run on two ranks that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    require_clean(killed(host_copy, folder, four_epochs(folder), "none"))
    state = newest(folder)
    assert state["epoch"] == 4 and state["steps"] == 12 and state["world_size"] == 2
    assert state["best"]["best_valid_loss"] is not None
    return state


def test_kills_at_any_place_and_then_by_hand_with_the_newest_file_damaged(
    host_copy: Host, four_epochs: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Before the first epoch's end (a new beginning), in a later epoch, in the middle of a save:
    torchrun resumes by itself. Then half of the last state is lost, and its epoch is made again.
    """
    plan, file = "0@2+1@5+0@save:2", four_epochs(tmp_path)
    added = {env.RESUME_NOTE: str(tmp_path / "note")}
    result = killed(host_copy, tmp_path, file, plan, restarts=3, added=added)
    require_finished(result)
    assert len(list((tmp_path / "happened").iterdir())) == 3
    assert "no epoch was finished: training starts over" in result.stdout
    assert result.stdout.count("resuming training from epoch") == 2
    assert "no terminal" not in result.stdout, "a restart must not ask about its own directory"
    # newest() asserts that there is one folder
    assert state_differences(newest(tmp_path), whole) == []

    directory = run_directory(tmp_path / "runs")
    logged = {epoch for tag, epoch in scalars(directory) if tag == "Train/Loss"}
    # Of epoch 2 the main rank was itself killed, less than a second after it.
    assert logged | {2} == {1, 2, 3, 4}, "the kill of another rank costs nothing in TensorBoard"
    note = (tmp_path / "note").read_text()  # our launcher prints it after a kill
    what = f"the run in {directory} can be resumed from its last saved state. Resume with:\n"
    assert note.startswith(what) and "ROBOMIMIC_DDP_RESUME=true" in note
    assert read_file(directory / PREVIOUS)["epoch"] == 3
    data = (directory / STATE).read_bytes()
    (directory / STATE).write_bytes(data[: len(data) // 2])
    result = killed(host_copy, tmp_path, file, "none", "--resume")
    require_finished(result)
    assert f"{directory / STATE} is damaged" in result.stdout + result.stderr
    assert "resuming training from epoch 4" in result.stdout
    assert state_differences(newest(tmp_path), whole) == []
    history = (directory / "history.jsonl").read_text().splitlines()
    trained = [json.loads(line) for line in history if '"train"' in line]
    assert [line["epoch"] for line in trained] == [1, 2, 3, 4]


def test_a_stop_signal_to_torchrun_and_the_entry_with_a_dot_list(
    host_copy: Host, four_epochs: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Stops in the second epoch; the state has the position in it and the sums of its log. The
    command that resumes: tests/config/test_resume_command.py.
    """
    file = four_epochs(tmp_path)
    result = killed(host_copy, tmp_path, file, "0@SIGTERM:4", restarts=1)
    assert result.returncode == 1 and not result.timed_out and not result.leftovers, result
    directory = run_directory(tmp_path / "runs")
    marker = json.loads((directory / "requeue").read_text())
    assert marker["signal"] == "SIGTERM" and "in epoch 2 after" in marker["stopped"]
    resume = result.stdout.split("Resume with:\n")[1]
    assert " ROBOMIMIC_DDP_RESUME=true " in resume
    stored = json.loads((directory / "ddp.json").read_text())["resume"]
    assert marker["resume"] == stored == resume.split("\n")[0].strip()
    state = newest(tmp_path)
    assert state["epoch"] == 1 and state["inside"]["epoch"] == 2
    assert state["ranks"][0]["logs"]["totals"]["Loss"][1] == 4 * state["inside"]["steps"]
    entry = ("robomimic.scripts.train_rlds", f"load_from={file}", "resume=true")
    require_finished(torchrun(host_copy, *entry))
    assert not (directory / "requeue").exists()
    assert state_differences(newest(tmp_path), whole) == []
