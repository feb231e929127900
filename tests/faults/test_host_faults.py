"""Faults planted in the real host's algorithms, on two ranks: named at the epoch's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import optimizer_ddp
from tests.parity import training
from tests.parity.comparison import CHANGES
from tests.ranks.pool import RankError

pytestmark = [pytest.mark.planted_fault, pytest.mark.timeout(300)]
STEPS, STEP = 4, 2


def loads_another_checkpoint(model: Any) -> None:
    saved = model.serialize()
    saved["nets"] = {name: tensor + 1e-6 for name, tensor in saved["nets"].items()}
    model.deserialize(saved)


def averages_once_more(model: Any) -> None:
    from robomimic.utils.diffusion_utils import _step_ema

    _step_ema(model.ema, model.ema_nets, model.nets)


def skips_the_average(model: Any) -> None:
    """Nothing is averaged in the backward pass, nor before the step."""
    averaging = optimizer_ddp.of(model.optimizers["actor"])
    averaging.remove()
    averaging.average_in_backward = lambda loss: loss


def passes_ddp_by(model: Any) -> None:
    averaging = optimizer_ddp.of(model.optimizers["critic"][1])
    assert callable(averaging.average_in_backward)
    averaging.average_in_backward = lambda loss: loss


def gains_an_optimizer(model: Any) -> None:
    model.optimizers["late"] = torch.optim.Adam(model.nets["critic_target"].parameters())


def freezes_a_critic(model: Any) -> None:
    model.nets["critic"][1].requires_grad_(False)


def freezes_a_layer(model: Any) -> None:
    next(model.nets["critic"][1].parameters()).requires_grad_(False)


def updates_a_target(model: Any) -> None:
    import robomimic.utils.torch_utils as TorchUtils

    with torch.no_grad():
        for target, critic in zip(model.nets["critic_target"], model.nets["critic"]):
            TorchUtils.soft_update(source=critic, target=target, tau=0.5)


FAULTS: dict[Callable, list] = {
    loads_another_checkpoint: ["end of epoch 0", "nets.policy.", "[1]"],
    averages_once_more: ["end of epoch 0", "ema.optimization_step", "rank 1: 5"],
}


FROM_THE_FIRST_STEP = "a loss passes DDP by on one rank, from the first step on"
OTHERS: dict[str, tuple[str, Callable, tuple[int, ...], list]] = {
    "no average of one optimizer, on both ranks": (
        *("cql", skips_the_average, (0, 1)),
        ["end of epoch 0", "nets.actor.", "[1]"],
    ),
    "a loss passes DDP by, on both ranks": (
        *("cql", passes_ddp_by, (0, 1)),
        ["WrapError", "optimizer critic[1]", "backprop_for_loss"],
    ),
    "a loss passes DDP by, on one rank": (
        *("bcq", passes_ddp_by, (1,)),
        ["WrapError", "optimizer critic[1]", "backprop_for_loss"],
    ),
    FROM_THE_FIRST_STEP: (
        *("bcq", passes_ddp_by, (1,)),
        ["WrapError", "rank 0: optimizer critic[1] averages gradients during the backward pass"],
    ),
    "an optimizer that came later": (
        *("iql", gains_an_optimizer, (0, 1)),
        ["VerifyError", "end of epoch 0", "optimizer late", "was added, replaced or unfrozen"],
    ),
    "a critic frozen on one rank": (
        *("td3_bc", freezes_a_critic, (1,)),
        ["WrapError", "optimizer critic[1]", "on rank 1"],
    ),
    "a layer of a critic frozen on one rank": (
        *("td3_bc", freezes_a_layer, (1,)),
        ["VerifyError", "end of epoch 0", "nets.critic.1.", "frozen", "[1]"],
    ),
    "a target updated on one rank": (
        *("bcq", updates_a_target, (1,)),
        ["VerifyError", "end of epoch 0", "nets.critic_target.", "[1]"],
    ),
}
"""Title -> variant, what happens on which ranks, and what is said."""


def train_with(
    job: training.Job, fault: Callable, ranks: tuple[int, ...] = (1,), step: int = STEP
) -> None:
    """Collective: the job; `fault` happens on `ranks` before a step, of which the first is 0."""
    real, taken = training.one_step, []

    def one_step(model: Any, batch: dict, epoch: int) -> float | None:
        taken.append(batch)
        if len(taken) == step + 1 and group.rank() in ranks:
            fault(model)
        return real(model, batch, epoch)

    with mock.patch.object(training, "one_step", one_step):
        training.train_on_rank(job)


def require_named(pool: Any, words: list, *call: Any) -> None:
    with pytest.raises(RankError) as caught:
        pool.run(train_with, *call, timeout=120)
    text = str(caught.value)
    assert "WrapError" in text or "VerifyError" in text, text
    for word in words:
        assert word in text, f"{word!r} is not in {text}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_fault_is_named(fault, host_copy, config_file, host_ranks):
    settings = config_file("diffusion_policy", CHANGES)
    job = training.Job(str(host_copy.folder), str(settings), STEPS)
    require_named(host_ranks, FAULTS[fault], job, fault)


@pytest.mark.parametrize("title", OTHERS)
def test_the_fault_of_another_algorithm_is_named(title, host_copy, config_file, host_ranks):
    variant, fault, ranks, words = OTHERS[title]
    job = training.Job(str(host_copy.folder), str(config_file(variant)), STEPS)
    step = 0 if title == FROM_THE_FIRST_STEP else STEP
    require_named(host_ranks, words, job, fault, ranks, step)
