"""N ranks with batch B against one process with batch N x B, 10 steps of the host's diffusion
policy on HDF5 data. The tolerances and their reasons: tests/parity/comparison.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from robomimic_ddp.distributed.gradients import parallel
from tests.configs import make_config, merged
from tests.parity.comparison import CHANGES, PARTS, STEPS, faults, largest_and_mean, require_parity
from tests.parity.reference import train_for_all_ranks
from tests.parity.training import Job, job_of, train_on_rank
from tests.tiers import slow_but
from tests.versions import require

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]


class Case(NamedTuple):
    """What is trained, on how many ranks. `weights`: of the dataset and a shorter copy of it.
    `options`: of ours, for the ranks.
    """

    variant: str
    ranks: int = 2
    weights: tuple = ()
    max_grad_norm: float | None = None
    accumulate: int = 1
    options: tuple = ()


SHARDED = (("mode", "fsdp"),)
SMALL_BUCKETS = ("kwargs", {"bucket_cap_mb": 0.1})
OF_DDP = {"static_graph": True, "gradient_as_bucket_view": False, parallel.BUFFERS[0]: False}
CASES = {
    "low-dim": Case("diffusion_policy"),
    "low-dim, 3 ranks": Case("diffusion_policy", ranks=3),
    "low-dim, 4 ranks": Case("diffusion_policy", ranks=4),
    "images": Case("diffusion_policy_images"),
    "images, random crops": Case("diffusion_policy_crops"),
    "weighted mixture": Case("diffusion_policy", weights=(3.0, 1.0)),
    "clipped gradients": Case("diffusion_policy", max_grad_norm=0.2),
    # On three ranks the order of a sum shows, and buckets decide it.
    "small buckets, preset safe, 3 ranks": Case(
        "diffusion_policy", 3, options=(SMALL_BUCKETS, ("preset", "safe"))
    ),
    "3 micro-batches on one rank": Case("diffusion_policy", ranks=1, accumulate=3),
    "3 micro-batches, clipped": Case("diffusion_policy", max_grad_norm=0.2, accumulate=3),
    "2 micro-batches, images, random crops": Case("diffusion_policy_crops", accumulate=2),
    "sharded, clipped": Case("diffusion_policy", max_grad_norm=0.2, options=SHARDED),
    "sharded, images": Case("diffusion_policy_images", options=SHARDED),
    "sharded, 3 micro-batches": Case("diffusion_policy", accumulate=3, options=SHARDED),
    "sharded, images, checkpointed": Case(
        "diffusion_policy_images", options=(*SHARDED, ("activation_checkpointing", True))
    ),
    "sharded in 2 replicas of 2 ranks": Case(
        "diffusion_policy", 4, options=(*SHARDED, ("fsdp_replicas", 2))
    ),
}


SLOW = {
    "low-dim, 3 ranks",
    "images",
    "3 micro-batches on one rank",
    "sharded in 2 replicas of 2 ranks",  # tests/ranks/gradients/test_fsdp.py has one step of it
    "sharded, 3 micro-batches",
    "sharded, images, checkpointed",
    "sharded, images",
    "low-dim, 4 ranks",
    "2 micro-batches, images, random crops",
}
"""Cases whose parts are in other cases, or elsewhere."""


def changes_of(case: Case, dataset: Path, folder: Path) -> dict:
    """CHANGES, and the mixture of two datasets where the case has weights."""
    if not case.weights:
        return CHANGES
    paths = [dataset, Path(shutil.copy(dataset, folder / "second.hdf5"))]
    entries = [{"path": str(path), "weight": weight} for path, weight in zip(paths, case.weights)]
    return merged(CHANGES, {"train": {"data": entries, "normalize_weights_by_ds_size": True}})


@pytest.fixture
def make_job(host_copy, config_file, low_dim_dataset, tmp_path):
    """`make_job(case, ddp={option: value}, **train)`: the case's job, settings on top."""

    def make(case: Case, ddp: Any = None, **train: Any) -> Job:
        changes = merged(changes_of(case, low_dim_dataset, tmp_path), {"train": train})
        settings = config_file(case.variant, {**changes, **({"ddp": ddp} if ddp else {})})
        return Job(str(host_copy.folder), str(settings), STEPS, case.max_grad_norm)

    return make


@pytest.fixture(scope="module")
def reference_of(host_ranks):
    """`reference_of(case, job)`: one process with all batches. It reads none of our options,
    so that cases which differ in these alone have one reference.
    """
    known: dict[Case, dict] = {}

    def reference(case: Case, job: Job) -> dict:
        key = case._replace(options=())
        if key not in known:
            call = (train_for_all_ranks, job, case.ranks, case.accumulate)
            (known[key],) = host_ranks.run(*call, world_size=1)
        return known[key]

    return reference


@pytest.mark.parametrize("name", slow_but({*CASES} - SLOW, CASES))
def test_ranks_equal_one_process_with_all_batches(name, make_job, host_ranks, reference_of):
    case = CASES[name]
    require(dict(case.options))
    job = make_job(case, {"accumulate": case.accumulate, **dict(case.options)})
    of_ranks = host_ranks.run(train_on_rank, job, world_size=case.ranks, timeout=120)
    require_parity(of_ranks, reference_of(case, job))


def test_clipping_changes_what_is_trained(make_job, reference_of):
    """Else the case above would compare two runs without clipping."""
    results = [
        reference_of(CASES[name], make_job(CASES[name]))
        for name in ("low-dim", "clipped gradients")
    ]
    assert set(faults(*results)) >= {"exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    "ddp, batch",
    [
        ({"batch": "global", "kwargs": {"find_unused_parameters": True}}, 8),
        ({"verify": False, "kwargs": {**SMALL_BUCKETS[1], **OF_DDP}}, 4),
    ],
    ids=["batch, unused looked for", "verify, buckets, static graph, views, buffers"],
)
def test_options_of_equal_numerics_give_equal_bits(ddp, batch, make_job, host_ranks, plain_result):
    """Two addends give one sum in any order, so on two ranks no rounding is allowed for."""
    job = make_job(CASES["low-dim"], ddp=ddp, batch_size=batch)
    with_option, _ = host_ranks.run(train_on_rank, job)
    for part in PARTS:
        assert largest_and_mean(with_option[part], plain_result[part]) == (0, 0), part
    assert with_option["losses"] == plain_result["losses"]


@pytest.fixture(scope="module")
def plain_result(host_copy, host_ranks, low_dim_dataset, tmp_path_factory):
    """Rank 0's result with default options."""
    folder = tmp_path_factory.mktemp("plain")
    config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", CHANGES)
    return host_ranks.run(train_on_rank, job_of(host_copy, folder, config, STEPS))[0]


def test_the_tolerance_is_tight(make_job, plain_result, reference_of):
    """One rank's data alone, and one rank's noise for both, are outside it."""
    job = make_job(CASES["low-dim"])
    alone = reference_of(CASES["low-dim"]._replace(ranks=1), job)
    assert faults(plain_result, alone) == ["nets", "ema", "exp_avg", "exp_avg_sq"]
    others_data = reference_of(CASES["low-dim, 3 ranks"], job)
    assert set(faults(plain_result, others_data)) >= {"exp_avg", "exp_avg_sq"}
    assert not torch.equal(torch.tensor(alone["losses"]), torch.tensor(others_data["losses"]))
