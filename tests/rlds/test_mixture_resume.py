"""Stops a mixture inside an epoch, through the host's own entry: the same number of ranks resumes
to the bit, and on another number no window of a dataset's pass is lost or comes twice.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.configs import make_rlds_config, write_config
from tests.ranks.hosted import train_on_rank
from tests.ranks.pool import RankPool
from tests.rlds.conftest import FIRST, WEIGHTS
from tests.runs import newest, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
BATCH, EPOCHS, EPOCH_STEPS, SIGNALLED = 4, 5, 4, 10


def job(pool: RankPool, host: Any, folder: Path, plan: str, *more: str, ranks: int = 2) -> list:
    """One job below `folder`, whose config is there; the exit codes of the ranks."""
    arguments = (plan, str(folder / "happened"), f"load_from={folder / 'cfg.json'}", *more)
    call = (str(host.folder), "tests.e2e.killed_rlds", True, *arguments)
    return [code for code, _ in pool.run(train_on_rank, *call, world_size=ranks, timeout=200)]


def windows(folder: Path, ranks: int) -> list[list[int]]:
    """The windows of each batch that the ranks have trained on in a job."""
    files = [folder / "happened" / f"windows{rank}.jsonl" for rank in range(ranks)]
    return [json.loads(line)[1] for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def jobs(stored, small, host_copy, own_ranks, tmp_path_factory) -> dict[str, Path]:
    """Folders of a job that ran to its end, one that was stopped, and one that resumed it; each has
    the windows that it read.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ("whole", "stopped")}
    changes = {
        "train": {
            "dataset_names": ["made_up", "small"],
            "sample_weights": WEIGHTS,
            "data_cache_dir": str(folders["whole"] / "cache"),
            "batch_size": BATCH,
            "num_epochs": EPOCHS,
            "shuffle_buffer_size": 20,
        },
        "experiment": {"epoch_every_n_steps": EPOCH_STEPS, "validate": False},
    }
    data = stored.folder.parent.parent
    for folder in folders.values():
        config = make_rlds_config(data, folder / "runs", changes)
        write_config(folder / "cfg.json", config)
    assert job(own_ranks, host_copy, folders["whole"], "none") == [0, 0]
    plan = f"all@SIGUSR1:{SIGNALLED}"
    assert set(job(own_ranks, host_copy, folders["stopped"], plan)) == {75}
    folder = folders["resumed"] = tmp_path_factory.mktemp("resumed") / "run"
    resume(own_ranks, host_copy, folders["stopped"], folder, ranks=2)
    return folders


def resume(pool: RankPool, host: Any, stopped: Path, folder: Path, ranks: int) -> None:
    """Ends a copy of the job `stopped` in `folder`."""
    shutil.copytree(stopped, folder)
    (folder / "happened").rename(folder / "before")
    output = f"train.output_dir={folder / 'runs'}"
    assert job(pool, host, folder, "none", "resume=true", output, ranks=ranks) == [0] * ranks


def test_the_stop_is_inside_an_epoch_and_beyond_a_pass_of_the_small_set(jobs):
    state = newest(jobs["stopped"])
    assert state["inside"]["epoch"] == 3 and state["steps"] in (10, 11)
    place = state["ranks"][0]["data"]
    assert place["kind"] == "mixture" and len(json.dumps(place)) < 2_000
    assert [one["pass"] for one in place["members"].values()] == [0, 1]


def test_as_many_ranks_resume_to_the_bit(jobs):
    steps = newest(jobs["stopped"])["steps"]
    for rank in range(2):
        own = [jobs[name] / "happened" / f"windows{rank}.jsonl" for name in jobs]
        whole, stopped, resumed = (file.read_text().splitlines() for file in own)
        assert stopped[:steps] + resumed == whole and len(whole) == EPOCHS * EPOCH_STEPS
    assert state_differences(newest(jobs["resumed"]), newest(jobs["whole"])) == []


@pytest.mark.slow
def test_other_ranks_take_what_is_left_of_each_sets_pass(jobs, host_copy, own_ranks, tmp_path):
    """Through the host's entry; tests/rlds/test_mixtures.py has the loaders alone."""
    resume(own_ranks, host_copy, jobs["stopped"], tmp_path / "run", ranks=3)
    steps = newest(jobs["stopped"])["steps"]
    batches = windows(jobs["stopped"], 2)
    rest = windows(tmp_path / "run", 3)
    assert len(batches) == 2 * steps and len(rest) == 3 * (EPOCHS * EPOCH_STEPS - steps)
    assert {sum(index >= FIRST for index in batch) for batch in batches + rest} == {3}
    seen = Counter(index for batch in batches + rest for index in batch)
    large = {index: times for index, times in seen.items() if index < FIRST}
    assert set(large.values()) == {1}, "still the first pass of the large set"
    tiny = {index: times for index, times in seen.items() if index >= FIRST}
    whole, more = divmod(sum(tiny.values()), len(tiny))
    # Ranks are within a window of each other where a pass ends.
    early = sum(times > whole for times in tiny.values())
    assert set(tiny.values()) <= {whole - 1, whole, whole + 1, whole + 2}
    assert more <= early <= more + 3
