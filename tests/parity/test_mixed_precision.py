"""16 bits in the nets, or between the ranks, beside fp32: two micro-batches on two ranks.

Tolerance. Losses: 2 % relative: bf16 keeps 8 bits of a number, so a product of activations is off
by up to 0.4 %, and the loss, a mean over hundreds of numbers, by less than a few of these. The way
that parameters have gone in 10 steps: its cosine with fp32's at least 0.99; Adam's steps have the
sign of small gradients too, which rounding may turn. Ranks are equal to the bit, as ever.
"""

from __future__ import annotations

import pytest
import torch

from tests.configs import make_config
from tests.parity.comparison import CHANGES, PARTS, STEPS, largest_and_mean
from tests.parity.training import job_of, train_on_rank
from tests.ranks.pool import RankError
from tests.versions import cases, gloo_sends_bf16

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]
KINDS = {
    "precision bf16": {"precision": "bf16"},
    "precision fp16": {"precision": "fp16"},
    "comm fp16": {"comm": "fp16"},
    "comm bf16": {"comm": "bf16"},
}


@pytest.fixture(scope="module")
def train(host_copy, host_ranks, low_dim_dataset, tmp_path_factory):
    """`train(options, steps)`: the results of both ranks."""

    def run(options, steps=STEPS):
        folder = tmp_path_factory.mktemp("mixed")
        config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", CHANGES)
        job = job_of(host_copy, folder, config, steps, accumulate=2, **options)
        return host_ranks.run(train_on_rank, job, timeout=120)

    return run


@pytest.fixture(scope="module")
def exact(train):
    """fp32, and the weights after its first step, which is of a warm-up's size."""
    return train({})[0], train({}, 1)[0]


@pytest.mark.parametrize("kind", cases(KINDS))
def test_it_learns_as_fp32_does(kind, train, exact, host_ranks):
    if kind == "comm bf16" and not all(host_ranks.run(gloo_sends_bf16)):
        with pytest.raises(RankError, match="ddp.comm=bf16 is not possible over gloo with torch"):
            train(KINDS[kind])
        pytest.skip("this torch's gloo sends no bf16, so the option is refused")
    (zero, one), (whole, start) = train(KINDS[kind]), exact
    for part in PARTS:
        assert largest_and_mean(zero[part], one[part]) == (0, 0), part
    assert largest_and_mean(zero["nets"], whole["nets"])[1] > 0, "it was fp32"
    ours, theirs = torch.tensor(zero["losses"]), torch.tensor(whole["losses"])
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0)
    for part in ("nets", "ema"):
        ways = [way(result[part], start[part]) for result in (zero, whole)]
        cosine = float(torch.nn.functional.cosine_similarity(*ways, dim=0))
        print(f"{kind} {part}: cosine {cosine:.4f}")
        assert cosine > 0.99
    assert all(tensor.dtype == torch.float32 for tensor in zero["nets"].values())


def way(state, start):
    return torch.cat([(state[name] - start[name]).flatten() for name in start])
