"""What an Evaluator plays, films and leaves in the run's folder, with a pool that plays nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robomimic_ddp.commands.evaluate import checkpoints, record, worker
from robomimic_ddp.commands.evaluate.evaluator import Evaluator
from robomimic_ddp.commands.evaluate.record import Trackers
from robomimic_ddp.commands.evaluate.workers import Task
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.monitoring.records import evaluation
from tests.evaluate.support import ScriptedPool, write

ENVIRONMENTS = ("lift", "stack")


class FilmingPool(ScriptedPool):
    """Writes the videos that it is asked for, and notes what it plays."""

    def __init__(self, answer: str = "S") -> None:
        self.answer, self.names = answer, []

    def play(self, tasks: list[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        for task in tasks:
            video = task.message["video"]
            self.names.append(Path(video).name if video else None)
            if video and self.answer == "S":
                Path(video).parent.mkdir(parents=True, exist_ok=True)
                Path(video).touch()
            yield task, self.answers[self.answer]


def evaluate(run: Path, filmed: int, answer: str = "S") -> tuple[list, list[dict]]:
    """Evaluate last.pth in three episodes of each environment, as a separate command does; return
    the videos of what was played, and the results.
    """
    pool, folder = FilmingPool(answer), run / "copies"
    folder.mkdir(exist_ok=True)
    evaluator = Evaluator(run, folder, pool, Trackers(run), 3, filmed)
    return pool.names, evaluator.evaluate(run / "last.pth")


def recorded(run: Path) -> list[tuple[str, int]]:
    lines = [line for line in evaluation.read(run) if line["kind"] == "episode"]
    return sorted((line["env"], line["episode"]) for line in lines)


ALL = sorted((env, number) for env in ENVIRONMENTS for number in range(3))
VIDEOS = [f"last_{env}_{number}.mp4" for env in ENVIRONMENTS for number in range(2)]


def test_episodes_that_were_played_without_a_video_are_filmed_and_count_once(tmp_path):
    write(tmp_path / "last.pth")
    with record.locked(tmp_path):
        names, _ = evaluate(tmp_path, filmed=0)
        assert names == [None] * 6
        names, results = evaluate(tmp_path, filmed=2)
        assert names == VIDEOS
        assert [(result["episodes"], result["lost"]) for result in results] == [(3, [])] * 2
        assert recorded(tmp_path) == ALL
        assert evaluate(tmp_path, filmed=2)[0] == [], "all of it is there"
        (tmp_path / "videos" / "evaluation" / VIDEOS[1]).unlink()
        assert evaluate(tmp_path, filmed=2)[0] == VIDEOS[1:2]


def test_results_of_last_pth_get_the_name_of_the_file_that_stays(tmp_path):
    """Training may write it a moment later, and last.pth has other weights after the next epoch."""
    last = write(tmp_path / "last.pth")
    (tmp_path / "models").mkdir()
    (tmp_path / "copies").mkdir()
    pool = FilmingPool()
    with record.locked(tmp_path):
        evaluator = Evaluator(tmp_path, tmp_path / "copies", pool, Trackers(tmp_path), 3, 0)
        assert len(evaluator.evaluate(last)) == len(ENVIRONMENTS)
        for name in ("models/epoch_2.pth", "best_success.pth"):
            shutil.copyfile(last, tmp_path / name)
            assert evaluator.evaluate(tmp_path / name) == [] and len(pool.names) == 6
    results = evaluation.results(tmp_path)
    assert [line["checkpoint"] for line in results] == ["models/epoch_2.pth"] * 2
    assert [line["file"][0] for line in results if "file" in line] == ["models/epoch_2.pth"]


def test_videos_of_an_earlier_last_pth_are_replaced(tmp_path):
    with record.locked(tmp_path):
        write(tmp_path / "last.pth", 7)
        evaluate(tmp_path, filmed=2)
        for name in VIDEOS:
            os.utime(tmp_path / "videos" / "evaluation" / name, (1, 1))
        write(tmp_path / "last.pth", 8, weight=1.0)
        evaluate(tmp_path, filmed=0)
        assert evaluate(tmp_path, filmed=2)[0] == VIDEOS


def test_a_video_has_its_name_once_it_is_complete(tmp_path):
    """That of a killed process would be taken for the whole one."""
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "videos" / "a.mp4"
    with worker._video_writer(str(path)) as writer:
        for _ in range(3):
            writer.append_data(np.zeros((32, 32, 3), np.uint8))
        assert writer.request.filename != str(path) and not path.exists()
    assert path.stat().st_size and [*path.parent.iterdir()] == [path]
    with worker._video_writer(str(tmp_path / "empty.mp4")):
        pass
    assert not (tmp_path / "empty.mp4").exists()


@pytest.mark.bad_input
def test_a_result_stays_where_its_video_fails(tmp_path, capsys):
    write(tmp_path / "last.pth")
    with record.locked(tmp_path):
        evaluate(tmp_path, filmed=0)
        _, results = evaluate(tmp_path, filmed=1, answer="F")
        assert [(result["episodes"], result["lost"]) for result in results] == [(3, [])] * 2
        error = capsys.readouterr().err
        assert error.count("warning: episode 0 of lift is not filmed: ValueError: NaN") == 1
        with pytest.raises(CheckpointError, match="4 episodes in a row .*, episode 1 of stack: Va"):
            evaluate(tmp_path, filmed=2, answer="F")


@pytest.mark.bad_input
@pytest.mark.parametrize("fault", ["replaced", "damaged", "full disk", "interrupted"])
def test_a_checkpoint_that_cannot_be_read_leaves_no_copy(fault, tmp_path, monkeypatch):
    """Large ones would fill the disk until the evaluation ends."""
    path, folder = write(tmp_path / "last.pth"), tmp_path / "copies"
    folder.mkdir()
    copyfile = shutil.copyfile

    def copy(source: Path, target: Path) -> Path:
        copyfile(source, target)
        if fault == "replaced":
            write(source, 8)
        elif fault == "damaged":
            target.write_bytes(b"PK\3\4")
        elif fault == "full disk":
            raise OSError("No space left on device")
        else:
            raise KeyboardInterrupt
        return target

    monkeypatch.setattr(checkpoints.shutil, "copyfile", copy)
    with pytest.raises(KeyboardInterrupt if fault == "interrupted" else CheckpointError):
        checkpoints.copy_and_read(tmp_path, path, folder)
    assert not [*folder.iterdir()]
    monkeypatch.undo()
    copied, checkpoint = checkpoints.copy_and_read(tmp_path, path, folder)
    assert copied.is_file() and checkpoint.epoch in (7, 8)


def test_the_best_checkpoint_of_a_host_with_epochs_in_names_has_its_epoch(tmp_path):
    """Another epoch would have other random streams: the same weights would be played again."""
    path = write(tmp_path / "models" / "model_epoch_50.pth", None)
    with record.locked(tmp_path):
        (tmp_path / "copies").mkdir()
        best = tmp_path / checkpoints.BEST_SUCCESS
        for source, answers in ((path, 6), (best, 0)):
            pool = FilmingPool()
            evaluator = Evaluator(tmp_path, tmp_path / "copies", pool, Trackers(tmp_path), 3, 0)
            results = evaluator.evaluate(source)
            assert [result["epoch"] for result in results] == [50] * 2
            assert len(pool.names) == answers and best.read_bytes() == path.read_bytes()
