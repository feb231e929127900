"""RLDS data: a run that was killed and then stopped inside an epoch ends as the one that was not.

Image policy on two ranks, five epochs of four steps, one and a half passes; bits are compared. And
on one rank, what two had left of the pass.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.configs import make_rlds_config, write_config
from tests.hosts import Host, Result, require_finished, torchrun
from tests.runs import newest, state_differences

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
BATCH, SAVED, SIGNALLED, STEPS = 7, 4, 10, 20


def job(host: Host, folder: Path, data: Path, plan: str, *more: str, **options: Any) -> Result:
    """One job below `folder`; what has happened already is remembered there."""
    changes = {
        "train": {"batch_size": BATCH, "num_epochs": 5, "shuffle_buffer_size": 60},
        "experiment": {"epoch_every_n_steps": 4, "validate": False},
    }
    config = write_config(folder / "cfg.json", make_rlds_config(data, folder / "runs", changes))
    arguments = (plan, folder / "happened", f"load_from={config}", *more)
    return torchrun(host, "tests.e2e.entries.killed_rlds", *arguments, timeout=400.0, **options)


def windows(folder: Path, rank: int, attempt: str = "0") -> list[int]:
    """The windows that a rank has trained on in an attempt of torchrun, in order."""
    lines = (folder / "happened" / f"windows{rank}.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [index for of, batch in found if of == attempt for index in batch]


@pytest.fixture(scope="module")
def stopped(
    host_copy: Host, demo_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result, int]:
    """All ranks are killed in step 5, started again by torchrun, and stopped in the third epoch:
    (folder, result, step after which they stopped).
    """
    folder = tmp_path_factory.mktemp("stopped")
    plan = f"all@5+0@SIGUSR1:{SIGNALLED - SAVED}"
    result = job(host_copy, folder, demo_dataset, plan, restarts=1)
    assert result.returncode == 1 and not result.timed_out and not result.leftovers, result
    state = newest(folder)
    # The ranks agree on a step after the signal; the first pass is not over.
    assert state["inside"]["epoch"] == 3 and state["steps"] in (10, 11), result
    return folder, result, state["steps"]


def test_two_ranks_resume_to_the_bit(
    stopped: Any, host_copy: Host, demo_dataset: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    require_finished(job(host_copy, whole, demo_dataset, "none"))
    resumed, result, steps = stopped
    assert "resuming training from epoch 2" in result.stdout
    folder = tmp_path / "resumed"
    shutil.copytree(resumed, folder)
    (folder / "happened").rename(folder / "before")
    result = job(host_copy, folder, demo_dataset, "none", "resume=true")
    require_finished(result)
    assert f"data: pass 1 resumes after {steps} batches" in result.stdout, result
    for rank in range(2):
        before = windows(resumed, rank)[: SAVED * BATCH] + windows(resumed, rank, "1")
        assert before + windows(folder, rank) == windows(whole, rank)
    assert newest(whole)["steps"] == STEPS
    assert state_differences(newest(folder), newest(whole)) == []


def test_one_rank_takes_what_two_have_left_of_the_pass(
    stopped: Any, host_copy: Host, demo_dataset: Path, tmp_path: Path
) -> None:
    two, _, steps = stopped
    taken = [
        index
        for rank in range(2)
        for index in windows(two, rank)[: SAVED * BATCH] + windows(two, rank, "1")
    ]
    assert len(taken) == len(set(taken)) == steps * 2 * BATCH
    folder = tmp_path / "one"
    shutil.copytree(two, folder)
    (folder / "happened").rename(folder / "before")
    result = job(host_copy, folder, demo_dataset, "none", "resume=true", ranks=1)
    require_finished(result)
    assert "world size: 2 -> 1" in result.stdout
    left = int(re.search(r"the (\d+) windows that pass 1 has not delivered", result.stdout)[1])
    rest = windows(folder, 0)
    assert len(rest) == (STEPS - steps) * BATCH > left > 0
    this_pass = taken + rest[:left]
    assert len(set(this_pass)) == len(this_pass)
    assert set(rest[left:]) <= set(this_pass)
