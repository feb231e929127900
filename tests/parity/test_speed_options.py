"""Options that change how a step is computed, not what: two ranks, two micro-batches, images with
random crops, beside the same without the option.

Activation checkpointing, PowerSGD before it begins and a compiler that computes eagerly: equal to
the bit. Torch's traced backward adds numbers in another order: losses 1e-4 of their size,
Adam's moments 1e-4 of their length (the reasons are in tests/parity/comparison.py). PowerSGD of
rank 4: losses 5 % of their size, and Adam's first moments point the same way (cosine 0.9): what it
cannot send in one step it sends in later ones.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.distributed as dist

from robomimic_ddp.distributed.gradients import comm_hooks
from robomimic_ddp.training.step import compile
from tests.configs import make_config
from tests.parity.comparison import CHANGES, PARTS, largest_and_mean, moment_distance
from tests.parity.training import Job, job_of, train_on_rank
from tests.versions import require

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]
STEPS = 4
POWERSGD = {"comm": "powersgd:4"}
EQUAL = {"activation_checkpointing": True, "compile": "true", **POWERSGD}
CLOSE = {"activation_checkpointing": True, "compile": "reduce-overhead"}


def train_compiled(job: Job, backend: str, powersgd_start: int) -> dict:
    """Collective: as `train_on_rank`, compiled by `backend` where the options say so. Graphs are
    cut at buckets, of which torch would have the first one larger than these nets.
    """
    small = mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 100_000)
    begins = mock.patch.object(comm_hooks, "POWERSGD_START", powersgd_start)
    with small, begins, mock.patch.object(compile, "BACKEND", backend):
        return train_on_rank(job)


@pytest.fixture(scope="module")
def train(host_copy, host_ranks, image_dataset, tmp_path_factory):
    """`train(options, backend, powersgd_start)`: the results of both ranks, equal to the bit."""

    def run(options, backend="eager", powersgd_start=STEPS):
        folder = tmp_path_factory.mktemp("speed")
        config = make_config("diffusion_policy_crops", image_dataset, folder / "runs", CHANGES)
        options = {"accumulate": 2, "kwargs": {"bucket_cap_mb": 0.1}, **options}
        job = job_of(host_copy, folder, config, STEPS, **options)
        zero, one = host_ranks.run(train_compiled, job, backend, powersgd_start, timeout=200)
        for part in PARTS:
            assert largest_and_mean(zero[part], one[part]) == (0, 0), part
        return zero

    return run


@pytest.fixture(scope="module")
def plain(train):
    return train({})


def test_equal_to_the_bit(train, plain):
    require(EQUAL)
    trained = train(EQUAL)
    for part in PARTS:
        assert largest_and_mean(trained[part], plain[part]) == (0, 0), part
    assert trained["losses"] == plain["losses"]


@pytest.mark.slow
def test_equal_but_for_rounding(train, plain):
    require(CLOSE)
    trained = train(CLOSE, "aot_eager")
    losses = [torch.tensor(result["losses"]) for result in (trained, plain)]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)
    for moment in ("exp_avg", "exp_avg_sq"):
        distance = moment_distance(trained["optimizer"], plain["optimizer"], moment)
        print(f"{moment}: {distance:.1e}")
        assert distance < 1e-4
    assert list(trained["nets"]) == list(plain["nets"])
    assert all(tensor.is_contiguous() for tensor in trained["nets"].values())
    assert all(tensor.is_contiguous() for tensor in trained["optimizer"].values())


def test_powersgd_goes_the_same_way(train, plain):
    trained = train(POWERSGD, powersgd_start=2)
    ours, theirs = torch.tensor(trained["losses"]), torch.tensor(plain["losses"])
    assert trained["losses"] != plain["losses"], "nothing was compressed"
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0)
    names = [name for name in plain["optimizer"] if name.endswith("exp_avg")]
    flat = [
        torch.cat([one["optimizer"][name].flatten() for name in names]) for one in (trained, plain)
    ]
    cosine = float(torch.nn.functional.cosine_similarity(*flat, dim=0))
    print(f"cosine of the first moments: {cosine:.4f}")
    assert cosine > 0.9
