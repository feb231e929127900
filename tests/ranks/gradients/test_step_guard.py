"""Optimizers whose gradients nothing averages stop a run at their first step, whoever made them;
and an epoch without a step is no epoch.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizers

from robomimic_ddp import api
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import optimizer_ddp, step_guard
from robomimic_ddp.errors import WrapError
from tests.faults.toy_run import ToyJob, train
from tests.ranks.pool import RankError
from tests.versions import require

HIDDEN = nn.Linear(4, 4)
"""A global variable, which no search through an algorithm can find."""


def step(optimizer: Any, parameter: torch.Tensor, with_closure: bool = False) -> None:
    def backward() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    optimizer.step(backward) if with_closure else (backward(), optimizer.step())


def hidden(job: Any) -> None:
    optimizer = torch.optim.SGD(HIDDEN.parameters(), 0.1)
    job.plants["stepped"] = lambda job: step(optimizer, HIDDEN.weight)


def made_late(job: Any) -> None:
    """Within training, of a parameter that the algorithm has."""
    job.algo.log_alpha = nn.Parameter(torch.ones(()))

    def make(job: Any) -> None:
        job.algo.late = torch.optim.Adam([job.algo.log_alpha])
        step(job.algo.late, job.algo.log_alpha)

    job.plants["stepped"] = make


def with_a_closure(job: Any) -> None:
    job.algo.log_alpha = nn.Parameter(torch.ones(()))
    job.algo.lbfgs = torch.optim.LBFGS([job.algo.log_alpha])
    job.plants["stepped"] = lambda job: step(job.algo.lbfgs, job.algo.log_alpha, with_closure=True)


def no_step(job: Any) -> None:
    job.skip_step = job.skip_schedule = True
    job.algo.ema.step = lambda *_: None


def no_batch(job: Any) -> None:
    job.steps = 0


def trained(plant: Any, mode: str, verify: str = "false") -> int:
    """Collective: the epoch with the fault; returns how many hooks of torch's are left."""
    job = ToyJob({"construction": plant})
    job.options = {"mode": mode, "verify": verify}
    train(job)
    return len(torch_optimizers._global_optimizer_pre_hooks)


@pytest.mark.parametrize(
    "plant, mode, words",
    [
        (hidden, "auto", r"optimizer a SGD that the algorithm lacks was stepped on rank \d with"),
        (hidden, "fsdp", r"gradients of 1 tensor\(s\), the first of shape \[4, 4\]"),
        (made_late, "auto", "optimizer self.late was .* 2 ranks would train 2 models"),
        (with_a_closure, "auto", "optimizer self.lbfgs was stepped with a closure"),
        (no_step, "auto", r"epoch 1 train ended on rank \d after 4 batch\(es\) and no step"),
        (no_batch, "auto", r"after 0 batch\(es\) and no step"),
    ],
)
def test_the_fault_is_named(plant, mode, words, ranks):
    require({"mode": mode})
    with pytest.raises(RankError, match=f"(?s)WrapError.*{words}") as caught:
        ranks.run(trained, plant, mode)
    assert not caught.value.silent, "a rank hung"


@pytest.mark.parametrize("plant", [hidden, no_step])
def test_one_process_trains_what_its_host_trains(plant, ranks):
    assert ranks.run(trained, plant, "auto", world_size=1) == [0]


def plans_actions(job: Any) -> None:
    """Rollouts in which each rank optimizes the actions of different episodes."""

    @api.rollouts
    def rollout_with_stats(policy: Any, envs: dict, num_episodes: int, epoch: int) -> dict:
        actions = torch.zeros(3, requires_grad=True)
        step(torch.optim.SGD([actions], 0.1), actions)
        return {name: {"Return": 0.0} for name in envs}

    job.plants["epoch ends"] = lambda job: rollout_with_stats(job.algo, {}, 2, 1)


def unused(job: Any) -> None:
    """A step without gradients, which hosts take so that torch does not warn of schedules."""
    optimizer = torch.optim.SGD(HIDDEN.parameters(), 0.1)
    job.plants["epoch begins"] = lambda job: (optimizer.zero_grad(), optimizer.step())


@pytest.mark.parametrize("plant", [plans_actions, unused])
def test_steps_that_change_no_model_are_allowed(plant, ranks):
    assert ranks.run(trained, plant, "auto", "true") == [0, 0]


def guarded(undo: ExitStack) -> tuple:
    """(an optimizer whose gradients are averaged, the guard)"""
    nets = nn.ModuleDict({"actor": nn.Linear(2, 2)})
    algo = SimpleNamespace(nets=nets, optimizer=torch.optim.SGD(nets.parameters(), 0.1))
    optimizer_ddp.build(algo, Options(), undo)
    return algo.optimizer, undo.enter_context(step_guard.installed(algo))


def test_averaged_steps_are_counted_and_looked_at_once(monkeypatch):
    with ExitStack() as undo:
        optimizer, guard = guarded(undo)
        weight = optimizer.param_groups[0]["params"][0]
        for number in range(3):
            assert guard.steps == number
            step(optimizer, weight)
            monkeypatch.setattr(step_guard.host_algo, "held_by", None)
        assert guard.steps == 3


def test_parameters_that_join_later_and_closures_are_refused():
    joined = nn.Parameter(torch.ones(3))
    with ExitStack() as undo:
        optimizer, _ = guarded(undo)
        for call in (optimizer.step, lambda closure: optimizer.step(closure=closure)):
            with pytest.raises(WrapError, match="self.optimizer was stepped with a closure on"):
                call(lambda: joined.sum())
        optimizer.add_param_group({"params": [joined]})
        with pytest.raises(WrapError, match=r"of 1 tensor\(s\), the first of shape \[3\], that w"):
            step(optimizer, joined)
