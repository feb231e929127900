"""Faults planted in the real host's diffusion policy, on two ranks: named at the epoch's end."""

from __future__ import annotations

from typing import Any, Callable
from unittest import mock

import pytest

from robomimic_ddp.distributed import group
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


def moves_its_schedule(model: Any) -> None:
    model.lr_schedulers["policy"].step()


def loses_a_moment(model: Any) -> None:
    optimizer = model.optimizers["policy"]
    optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"].zero_()


def leaves_a_net_in_eval(model: Any) -> None:
    model.nets["policy"]["noise_pred_net"].eval()  # the host itself notices when all are


FAULTS: dict[Callable, list] = {
    loads_another_checkpoint: ["end of epoch 0", "nets.policy.", "[1]"],
    averages_once_more: ["end of epoch 0", "ema.optimization_step", "rank 1: 5"],
    moves_its_schedule: ["end of epoch 0", "optimizer policy learning rates", "[1]"],
    loses_a_moment: ["end of epoch 0", "nets.policy.", "[1]"],
    leaves_a_net_in_eval: ["WrapError", "noise_pred_net received a gradient on rank 1"],
}


def train_with(job: training.Job, fault: Callable) -> None:
    """Collective: the job; `fault` happens to rank 1 before its third step."""
    real, taken = training.one_step, []

    def one_step(model: Any, batch: dict, epoch: int) -> float:
        taken.append(batch)
        if len(taken) == STEP + 1 and group.rank() == 1:
            fault(model)
        return real(model, batch, epoch)

    with mock.patch.object(training, "one_step", one_step):
        training.train_on_rank(job)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_fault_is_named(fault, host_copy, config_file, host_ranks):
    settings = config_file("diffusion_policy", CHANGES)
    job = training.Job(str(host_copy.folder), str(settings), STEPS)
    with pytest.raises(RankError) as caught:
        host_ranks.run(train_with, job, fault, timeout=120)
    for words in FAULTS[fault]:
        assert words in str(caught.value)
