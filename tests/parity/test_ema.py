"""Averaged weights on two ranks: both diffusers APIs, both key layouts: step by step the unwrapped
net's. (On one process: tests/training/step/test_ema.py.)

Ranks are equal to the bit. Wrapping renames nothing and copies nothing, so there is nothing
to round. diffusers 0.11's EMAModel(model=) pairs parameters by name and, on a miss, silently copies
instead of averaging.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import parallel
from tests.averages import build, of_host

pytestmark = pytest.mark.parity


def unwrapped(module_key: bool) -> nn.ModuleDict:
    """The host's own nets: plain, or in torch's DataParallel."""
    nets = build("single", False)["policy"]
    return nn.ModuleDict(
        {
            "policy": nn.ModuleDict(
                {name: nn.DataParallel(net) if module_key else net for name, net in nets.items()}
            )
        }
    )


def averager(old_api: str | None, nets: nn.Module):
    """(step function, function that returns the averaged state dict) of either diffusers API."""
    ema = of_host(nets, old_api)
    if old_api is not None:
        return ema.step, lambda: ema.averaged_model.state_dict()
    copied = copy.deepcopy(nets).requires_grad_(False)

    def step(new: nn.Module) -> None:
        ema.step(new.parameters())
        ema.copy_to(copied.parameters())

    return step, lambda: copied.state_dict()


def run(nets: nn.Module, old_api: str | None, x_of_rank: list) -> list[dict]:
    """Averaged state after each of 5 optimizer steps; the gradient is the mean over `x_of_rank`'s
    batches.
    """
    optimizer = torch.optim.AdamW(nets.parameters(), lr=1e-2)
    step, averaged = averager(old_api, nets)
    policy, states = nets["policy"], []
    for index in range(5):
        optimizer.zero_grad()
        for x in x_of_rank:
            loss = policy["noise_pred_net"](policy["obs_encoder"](x + index)).pow(2).mean()
            (loss / len(x_of_rank)).backward()
        optimizer.step()
        step(nets)
        states.append({name: tensor.clone() for name, tensor in averaged().items()})
    return states


def require_equal(found: list[dict], expected: list[dict]) -> None:
    for ours, theirs in zip(found, expected):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), name
    last, first = expected[-1], expected[0]
    assert any(not torch.equal(last[name], first[name]) for name in last)


def on_a_rank(old_api: str | None, module_key: bool):
    x = [torch.full((3, 4), 1.0 + group.rank())]
    nets = build("ddp", module_key)
    found = run(nets, old_api, x)
    assert (
        parallel.state_of(next(m for m in nets.modules() if parallel.is_parallel(m))).parallel
        is not None
    )
    return found


@pytest.mark.parametrize("api", ["model=", "parameters="])
@pytest.mark.parametrize("module_key", [False, True])
def test_two_ranks(api, module_key, old_training_utils, ranks):
    """Against one process that accumulates both ranks' batches.

    Tolerance 1e-5 relative: the mean over ranks and the accumulated sum round in another order, and
    Adam divides by the gradient's own size.
    """
    old_api = old_training_utils if api == "model=" else None
    found0, found1 = ranks.run(on_a_rank, old_api, module_key)
    require_equal(found0, found1)
    expected = run(
        unwrapped(module_key), old_api, [torch.full((3, 4), 1.0), torch.full((3, 4), 2.0)]
    )
    for ours, theirs in zip(found0, expected):
        assert list(ours) == list(theirs)
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-7)
