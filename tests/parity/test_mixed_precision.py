"""bf16 and fp16 beside fp32, with micro-batches, two ranks and the host's diffusion policy.

Tolerance. Losses: 2 % relative: bf16 keeps 8 bits of a number, so a product of activations is off
by up to 0.4 %, and the loss, a mean over hundreds of numbers, by less than a few of these. The way
that parameters have gone in 25 steps: its cosine with fp32's at least 0.99; Adam's steps have the
sign of small gradients too, which rounding may turn. Ranks are equal to the bit, as ever.
"""

from __future__ import annotations

import pytest
import torch

from tests.configs import make_config, write_config
from tests.parity.comparison import CHANGES, PARTS, STEPS, largest_and_mean
from tests.parity.training import Job, train_on_rank

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def results(host_copy, ranks, low_dim_dataset, tmp_path_factory):
    """Precision -> results of both ranks; "start": after no step."""
    found = {}
    for name in ("start", "fp32", "bf16", "fp16"):
        folder = tmp_path_factory.mktemp(name)
        config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", CHANGES)
        kind = "fp32" if name == "start" else name
        config["ddp"] = {"precision": kind, "accumulate": 2}
        settings = str(write_config(folder / "config.json", config))
        job = Job(str(host_copy.folder), settings, 1 if name == "start" else STEPS)
        found[name] = ranks.run(train_on_rank, job, timeout=120)
    return found


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_it_learns_as_fp32_does(kind, results):
    (zero, one), (exact, _), (start, _) = results[kind], results["fp32"], results["start"]
    for part in PARTS:
        assert largest_and_mean(zero[part], one[part]) == (0, 0), part
    ours, theirs = torch.tensor(zero["losses"]), torch.tensor(exact["losses"])
    assert not torch.equal(ours, theirs), "it was fp32"
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0)
    for part in ("nets", "ema"):
        ways = [way(result[part], start[part]) for result in (zero, exact)]
        cosine = float(torch.nn.functional.cosine_similarity(*ways, dim=0))
        print(f"{kind} {part}: cosine {cosine:.4f}")
        assert cosine > 0.99
    assert all(tensor.dtype == torch.float32 for tensor in zero["nets"].values())


def way(state, start):
    return torch.cat([(state[name] - start[name]).flatten() for name in start])
