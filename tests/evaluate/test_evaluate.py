"""`robomimic-ddp evaluate` on given checkpoints: real processes, a host with a small simulator."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from robomimic_ddp.monitoring.records import evaluation
from tests.evaluate.conftest import EPISODES, Job
from tests.evaluate.support import of_evaluation, of_training
from tests.hosts import require_clean

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def episodes(run: Path) -> dict[tuple[int, int], dict]:
    """(epoch, episode) -> log. Fails where an episode is in the record twice."""
    lines = [line for line in evaluation.read(run) if line["kind"] == "episode"]
    found = {(line["epoch"], line["episode"]): line["log"] for line in lines}
    assert len(found) == len(lines), "an episode is in the record twice"
    return found


def require_of_training(run: Path, epochs: tuple[int, ...]) -> None:
    expected = of_training(run)
    found = of_evaluation(run)
    assert found == {epoch: pytest.approx(expected[epoch], rel=1e-5) for epoch in epochs}
    assert sorted(episodes(run)) == [(epoch, n) for epoch in epochs for n in range(EPISODES)]


def test_any_number_of_workers_and_any_host_play_the_episodes_of_training(
    job: Job, plain: Job
) -> None:
    one = plain.evaluate("--checkpoints", "all", "--workers", 1)
    require_clean(one)
    require_of_training(job.run, (1, 2))
    first = episodes(job.run)
    assert len({log["Return"] for log in first.values()}) == 2 * EPISODES
    (job.run / evaluation.FILE_NAME).unlink()
    two = job.evaluate("--checkpoints", "all", "--workers", 2)
    require_clean(two)
    assert episodes(job.run) == first
    head, *rows = two.stdout.splitlines()[-3:]
    assert (
        head.split() == "epoch environment episodes success 95 % return horizon checkpoint".split()
    )
    assert [row.split()[:3] for row in rows] == [[str(e), "low_dim", str(EPISODES)] for e in (2, 1)]
    best = job.run / "best_success.pth"
    assert best.read_bytes() in {path.read_bytes() for path in (job.run / "models").iterdir()}


@pytest.mark.planted_fault
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("hang", "took more than the 8 s of --episode-seconds; it is run again"),
        ("kill", "killed by SIGKILL (probably out of memory); it is run again"),
    ],
)
def test_an_episode_whose_process_ends_is_played_again(
    fault: str, says: str, job: Job, tmp_path: Path
) -> None:
    added = {"POINT_FAULT": f"{fault}:{tmp_path / 'planted'}"}
    result = job.evaluate("--workers", 1 + (fault == "kill"), "--episode-seconds", 8, added=added)
    require_clean(result)
    assert says in " ".join(result.stderr.split()), result
    require_of_training(job.run, (2,))
    if fault == "hang":
        assert "in _plant" in (job.run / "evaluation.log").read_text()


@pytest.mark.planted_fault
def test_an_episode_that_fails_is_left_out_and_named(job: Job, tmp_path: Path) -> None:
    added = {"POINT_FAULT": f"raise:{tmp_path / 'planted'}"}
    result = job.evaluate("--workers", 1, added=added)
    assert result.returncode == 1 and not result.leftovers, result
    assert "episode 0 of low_dim is left out: ValueError: planted in an episode" in result.stderr
    assert "5 (1 left out)" in result.stdout
    (line,) = evaluation.results(job.run)
    assert line["lost"] == [0] and line["episodes"] == EPISODES - 1


@pytest.mark.planted_fault
def test_checkpoints_whose_episodes_fail_do_not_end_a_follow(job: Job) -> None:
    result = job.evaluate("--follow", "--workers", 2, added={"POINT_FAULT": "raise"})
    assert result.returncode == 1 and not result.leftovers, result
    assert result.stderr.count("a checkpoint is left out: ") == 3, result
    line = result.stderr.splitlines()[-1]
    assert "no result for 3 checkpoint(s): " in line, result
    assert line.count("4 episodes in a row failed") == 3, result
    require_clean(job.evaluate("--follow", "--workers", 2))
    require_of_training(job.run, (1, 2))


@pytest.mark.bad_input
def test_files_of_one_name_are_different_policies_and_a_bad_one_is_left_out(job: Job) -> None:
    """A worker that has loaded one last.pth must not play it for the next one. What a worker
    answers after its checkpoint was left out must not count as the result of the next one.
    """
    files = sorted((job.run / "models").glob("model_epoch_*.pth"))
    for number, path in enumerate((files[0], *files)):
        copy = job.run / str(number) / "model.pth"
        copy.parent.mkdir()
        content = torch.load(path, weights_only=False)
        if number == 0:
            content["model"]["nets"].popitem()
        torch.save(content, copy)
    words = [f"{number}/model.pth" for number in range(3)]
    result = job.evaluate("--workers", 2, "--checkpoints", *words)
    assert result.returncode == 1 and not result.leftovers, result
    line = result.stderr.splitlines()[-1]
    assert "no result for 1 checkpoint(s): 0/model.pth: the host cannot make its policy" in line
    assert "Missing key(s)" in line and line.endswith("evaluation.log has the traceback."), result
    require_of_training(job.run, (1, 2))


@pytest.mark.planted_fault
def test_no_display_is_one_error_with_a_remedy(job: Job) -> None:
    result = job.evaluate("--workers", 2, added={"POINT_FAULT": "display"})
    assert result.returncode == 1 and not result.leftovers, result
    error = " ".join(result.stderr.split())
    assert "cannot begin: ImportError: Cannot initialize a EGL" in error, result
    assert error.count("docs/evaluate.md says what simulators need") == 1, result


def test_a_simulator_that_cannot_be_seeded_is_named(job: Job) -> None:
    result = job.evaluate("--workers", 1000, "--episodes", 1, added={"POINT_FAULT": "unseeded"})
    require_clean(result)
    assert "1000 workers share" in result.stdout, "they are as many as episodes at most"
    assert "the simulator of low_dim cannot be seeded" in " ".join(result.stdout.split())


@pytest.mark.planted_fault
def test_a_killed_evaluation_continues(job: Job, tmp_path: Path) -> None:
    """Another one refuses meanwhile: tests/evaluate/test_pieces.py."""
    added = {"POINT_FAULT": f"orphan:{tmp_path / 'planted'}"}
    killed = job.evaluate("--workers", 2, added=added)
    assert killed.returncode == -signal.SIGKILL, killed
    assert not killed.leftovers, "processes have outlived the evaluation"
    played = len(evaluation.read(job.run))
    assert 1 <= played < EPISODES
    with open(job.run / evaluation.FILE_NAME, "a") as file:
        file.write('{"kind": "epis')  # as a full disk, or a crash, leaves it
    result = job.evaluate("--workers", 1)
    require_clean(result)
    assert f"{played} episode(s) are in evaluation.jsonl already" in result.stdout
    require_of_training(job.run, (2,))
    assert not [name for name in os.listdir(job.run) if name.startswith(".")]
