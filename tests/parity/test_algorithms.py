"""Every algorithm of the host: N ranks with batch B against one process with their batches and
their random draws, 6 steps.

In 64 bits each net, target networks too, is within 1e-12 of the way that it has gone, and each of
Adam's moments within 1e-12 of its length: what is left is the order of sums. Ranks are equal to the
bit. Without synchronisation the nets differ by a tenth of their way and more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from robomimic_ddp import api
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import comm_hooks, optimizer_ddp, step_guard
from tests.configs import VARIANTS, make_config, uses_images
from tests.parity.algorithms import ALGORITHMS, BATCH, changes_of
from tests.parity.comparison import distances
from tests.parity.reference import train_for_all_ranks
from tests.parity.training import Job, job_of, train_on_rank
from tests.runs import digests
from tests.tiers import slow_but
from tests.versions import gloo_sends_bf16

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]
STEPS = 6
EXACT, APART = 1e-12, 0.1
CASES = [(name, world) for name, one in ALGORITHMS.items() for world in one.ranks]
SLOW = {
    *("BC Gaussian", "BC GMM", "BC RNN", "BC Transformer", "BC VAE"),
    *("BC VAE, GMM prior of the observation", "BCQ, distributional critic", "BCQ, GMM sampler"),
    *("CQL, weights not tuned", "IQL, GMM actor", "GL"),
}
"""Variants whose parts are in others."""
ON_THREE_RANKS = {"BC RNN-GMM", "CQL"}
"""The others' runs on three ranks are slow."""


def test_every_algorithm_of_the_host_is_here():
    """But the diffusion policy: tests/parity/test_diffusion_policy.py."""
    others = {name for name, (algo, _) in VARIANTS.items() if algo != "diffusion_policy"}
    assert {one.variant for one in ALGORITHMS.values()} == others


@pytest.fixture(scope="module")
def make_job(host_copy, low_dim_dataset, image_dataset, tmp_path_factory) -> Callable[..., Job]:
    """`make_job(name, double, batch, **ddp)`: a job of ALGORITHMS, with options of ours."""
    folder = tmp_path_factory.mktemp("algorithms")

    def make(name: str, double: bool = False, batch: int = BATCH, **ddp: Any) -> Job:
        one = ALGORITHMS[name]
        dataset = image_dataset if uses_images(one.variant) else low_dim_dataset
        config = make_config(one.variant, dataset, folder / "runs", changes_of(one))
        config["train"]["batch_size"] = batch
        return job_of(host_copy, folder, config, STEPS, None, double, one.second_epoch, **ddp)

    return make


@pytest.fixture(scope="module")
def reference_of(make_job, host_ranks) -> Callable[..., dict]:
    """`reference_of(name, world, double)`: the result of one process with all batches."""

    @functools.cache
    def train(name: str, world: int, double: bool = True) -> dict:
        call = (train_for_all_ranks, make_job(name, double), world)
        return host_ranks.run(*call, world_size=1, timeout=120)[0]

    return train


def train(job: Job) -> tuple[dict, dict]:
    """Collective: digests of all that was trained, and on the main rank the result."""
    with mock.patch.object(comm_hooks, "POWERSGD_START", 3):
        result = train_on_rank(job)
    return digests({**result["nets"], **result["optimizer"]}), result if group.is_main() else {}


def train_apart(job: Job) -> dict:
    """Collective: gradients are averaged nowhere, and nothing refuses their steps."""
    build = mock.patch.object(optimizer_ddp, "build", lambda *_: None)
    unguarded = mock.patch.object(step_guard.StepGuard, "_look_at", lambda *_, **__: None)
    with build, unguarded:
        return train_on_rank(job)


def train_with_own_means(job: Job) -> dict:
    """Collective: what the host weighs a loss with is of each rank's own batch."""
    with mock.patch.object(api, "over_ranks", lambda value: value):
        return train_on_rank(job)


def largest(found: dict[str, float]) -> tuple[float, str]:
    """Of `comparison.distances`; printed."""
    name = max(found, key=found.get)
    print(f"{found[name]:.1e}: {name}")
    return found[name], name


@pytest.mark.parametrize(
    "name, world",
    [
        pytest.param(
            *(name, world),
            id=f"{name}, {world}",
            marks=[pytest.mark.slow] * (name in SLOW or world > 2 and name not in ON_THREE_RANKS),
        )
        for name, world in CASES
    ],
)
def test_ranks_equal_one_process_with_all_batches(name, world, make_job, host_ranks, reference_of):
    call = (train, make_job(name, double=True))
    (bits, result), *others = host_ranks.run(*call, world_size=world, timeout=120)
    assert all(one == bits for one, _ in others), "the ranks differ"
    assert largest(distances(result, reference_of(name, world)))[0] <= EXACT


@pytest.mark.parametrize("name", slow_but({"BC", "CQL", "HBC"}, ALGORITHMS))
def test_without_synchronisation_it_fails(name, make_job, host_ranks, reference_of):
    """Every net; CQL's two numbers (log_...) go their way by the same sign of another gradient."""
    apart, _ = host_ranks.run(train_apart, make_job(name, double=True, verify=False), timeout=120)
    found = {
        part: one
        for part, one in distances(apart, reference_of(name, 2)).items()
        if not any(word in part for word in (" of optimizer ", "log_", " buffers"))
    }
    print(found)
    assert min(found.values()) > APART, found


@pytest.mark.parametrize(
    "name, train_differently, ddp",
    [
        ("TD3-BC", train_with_own_means, {}),
        ("BC ResNet18", train_on_rank, {"sync_batchnorm": False}),
    ],
)
def test_with_statistics_of_each_rank_it_fails(
    name, train_differently, ddp, make_job, host_ranks, reference_of
):
    """Gradients are averaged all the same, and ranks are equal."""
    job = make_job(name, double=True, **ddp)
    zero, one = host_ranks.run(train_differently, job, timeout=120)
    assert digests(zero["nets"]) == digests(one["nets"])
    assert largest(distances(zero, reference_of(name, 2)))[0] > 1e-3


@pytest.mark.parametrize("name", ["BC RNN-GMM", "GL VAE"])
def test_micro_batches(name, make_job, host_ranks):
    job = make_job(name, double=True, batch=7, accumulate=2)
    (bits, result), (other, _) = host_ranks.run(train, job, timeout=120)
    assert other == bits, "the ranks differ"
    expected = host_ranks.run(train_for_all_ranks, job, 2, 2, world_size=1, timeout=120)[0]
    assert largest(distances(result, expected))[0] <= EXACT


@pytest.mark.parametrize("comm, most", [("bf16", 0.05), ("powersgd:1", 0.5)])
def test_compressed_gradients_keep_ranks_equal(comm, most, make_job, host_ranks, reference_of):
    """Each optimizer has separate hooks, and PowerSGD a separate state."""
    if comm == "bf16" and not all(host_ranks.run(gloo_sends_bf16)):
        pytest.skip("this torch's gloo sends no bf16, so the option is refused")
    job = make_job("IQL", comm=comm)
    (bits, result), (other, _) = host_ranks.run(train, job, timeout=120)
    assert other == bits, "the ranks differ"
    found = distances(result, reference_of("IQL", 2, False))
    moments = {part: one for part, one in found.items() if part.startswith("exp_avg")}
    assert 0 < largest(moments)[0] < most
