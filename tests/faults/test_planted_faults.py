"""Every fault of the catalogue on three real ranks: loud before the first epoch is over."""

from __future__ import annotations

import pytest
import torch

import robomimic_ddp
from tests.faults.catalogue import CATALOGUE, sharded
from tests.faults.toy_run import MOMENTS, STEPS, ToyJob, train
from tests.ranks.pool import RankError
from tests.versions import require

pytestmark = pytest.mark.planted_fault


def train_with(title: str) -> None:
    """Collective: one epoch with the fault; puts back what the fault changes for the process."""
    fault, version = CATALOGUE[title], robomimic_ddp.__version__
    try:
        train(ToyJob(fault.plants))
    finally:
        robomimic_ddp.__version__ = version
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("title", CATALOGUE)
def test_the_fault_is_named(title, ranks):
    if CATALOGUE[title].plants.get("config") is sharded:
        require({"mode": "fsdp"})
    with pytest.raises(RankError) as caught:
        ranks.run(train_with, title, world_size=3)
    text = str(caught.value)
    assert "WrapError" in text or "VerifyError" in text, text
    assert not caught.value.silent, "a rank hung"
    for words in CATALOGUE[title].says:
        assert words in text, f"{words!r} is not in {text}"


def clean(mode: str) -> int:
    reached = []
    job = ToyJob({moment: lambda job: reached.append(job) for moment in MOMENTS})
    job.options = {"mode": mode}
    train(job)
    return len(reached)


@pytest.mark.parametrize(
    "mode, world_size", [("auto", 1), ("auto", 2), ("auto", 3), ("fsdp", 2), ("fsdp", 3)]
)
def test_the_same_job_without_a_fault_passes(mode, world_size, ranks):
    """Else the messages above could come from the job itself."""
    require({"mode": mode})
    reached = ranks.run(clean, mode, world_size=world_size)
    assert reached == [len(MOMENTS) - 3 + 3 * STEPS] * world_size
