"""`ddp.schedule=samples`: as many samples as configured, in fewer steps, by the same schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.errors import EXIT_REFUSED
from tests.hosts import Host
from tests.ranks.hosted import job, require_finished
from tests.ranks.pool import RankPool
from tests.runs import newest, state_differences

pytestmark = pytest.mark.timeout(600)
SAMPLES = {"ROBOMIMIC_DDP_SCHEDULE": "samples"}


def config(make: Any, folder: Path, steps: int, warmup: int, **train: Any) -> Path:
    rate = {"warmup_steps": warmup, "scheduler_type": "cosine", "step_every_batch": True}
    return make(
        folder,
        train={"num_epochs": 2, **train},
        algo={"optim_params": {"policy": {"learning_rate": rate}}},
        experiment={"epoch_every_n_steps": steps},
    )


@pytest.fixture(scope="module")
def shortened(
    tmp_path_factory: Any, host_copy: Host, host_ranks: RankPool, four_epochs: Any
) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("shortened")
    file = config(four_epochs, folder, 6, 4)
    done = job(host_ranks, host_copy, folder, file, "none", added=SAMPLES)
    return folder, require_finished(done)


def test_it_is_the_run_whose_config_is_shorter(
    shortened: tuple[Path, str], host_copy: Host, host_ranks: RankPool, four_epochs: Any, tmp_path
) -> None:
    folder, text = shortened
    assert "ddp.schedule=samples: 6 -> 3 steps in an epoch, and over the run as" in text
    assert "schedule: 2 epoch(s) of 3 step(s)" in text
    file = config(four_epochs, tmp_path, 3, 2)
    text = require_finished(job(host_ranks, host_copy, tmp_path, file, "none"))
    assert (
        "2 ranks take 2 x the samples in each step, and as many steps as one process; ddp.sch"
        in text
    )
    one, two = newest(folder), newest(tmp_path)
    assert one["steps"] == two["steps"] == 6
    assert state_differences(one["model"], two["model"], ()) == []


def test_it_is_resumed_with_as_many_samples_in_a_step(
    shortened: tuple[Path, str], host_copy: Host, host_ranks: RankPool, four_epochs: Any
) -> None:
    folder = shortened[0]
    for batch_size in (6, 4):
        file = config(four_epochs, folder, 6, 4, num_epochs=3, batch_size=batch_size)
        done = job(host_ranks, host_copy, folder, file, "none", "--resume", added=SAMPLES)
        if batch_size == 6:
            assert done[0] == EXIT_REFUSED
            assert "ddp.schedule=samples with 8 samples per step -> samples with 12" in done[1]
    require_finished(done)
    assert newest(folder)["epoch"] == 3 and newest(folder)["steps"] == 9
