"""Algorithms with nets and optimizers in other attributes than robomimic's: trained, proven and
saved as those in `nets` and `optimizers` are.
"""

from __future__ import annotations

import contextlib
import copy
import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import restore_model, state_file
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import group, host_algo
from tests.faults.toy_run import BATCH, STEPS, ToyJob, train
from tests.ranks.pool import RankError
from tests.runs import captured


class OwnLayout:
    """A behaviour cloning policy that has robomimic's methods and none of its attributes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.nets = nn.ModuleDict()  # robomimic's Algo makes it; nothing puts a net into it
        self.optimizers: dict = {}
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.itself = self

    def process_batch_for_training(self, batch: dict) -> dict:
        return batch

    def loss(self, batch: dict) -> torch.Tensor:
        return (self.model(batch["obs"].double()) - batch["actions"].double()).pow(2).mean()

    def train_on_batch(self, batch: dict) -> dict:
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return {"Loss": loss.item()}

    def on_gradient_step(self) -> None:
        pass

    def log_info(self, info: dict) -> dict:
        return info


class InAnAgent(OwnLayout):
    """The same in an object of a list, which knows its owner, and twice reachable."""

    def __init__(self) -> None:
        super().__init__()
        agent = SimpleNamespace(net=self.model, adam=[self.optimizer], owner=self, steps=0)
        self.agents = [agent, {"again": agent}]
        self.by_name = {"optimizers": (self.optimizer,)}


class InItsModule(OwnLayout):
    """The optimizer is an attribute of the module, as ACT's is."""

    def __init__(self) -> None:
        super().__init__()
        self.model.optimizer = self.optimizer
        del self.schedule

    def train_on_batch(self, batch: dict) -> dict:
        self.model.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.model.optimizer.step()
        return {"Loss": loss.item()}


LAYOUTS = [OwnLayout, InAnAgent, InItsModule]


def trained(layout: Callable, before: Callable = lambda job: None) -> tuple:
    """Collective: an epoch of it, as a patched host trains; weights, and the batches of a rank."""
    batches: list = []

    def use(job: Any) -> None:
        job.algo = layout()
        job.algo.job = job
        job.change_batch = lambda batch: batches.append(copy.deepcopy(batch)) or batch
        before(job)

    job = ToyJob({"construction": use})
    train(job)
    assert not job.algo.optimizer._optimizer_step_pre_hooks
    return torch.cat([one.detach().flatten() for one in job.algo.model.parameters()]), batches


def one_process(layout: Callable, batches: list) -> torch.Tensor:
    """Weights of the same algorithm trained on the batches of all ranks."""
    algo = layout()
    for parts in zip(*batches):
        algo.train_on_batch({key: torch.cat([part[key] for part in parts]) for key in parts[0]})
    return torch.cat([one.detach().flatten() for one in algo.model.parameters()])


@pytest.mark.parity
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_train_what_one_process_trains(layout, ranks):
    weights, batches = zip(*ranks.run(trained, layout))
    assert [len(own) for own in batches] == [STEPS, STEPS] and len(batches[0][0]["obs"]) == BATCH
    assert torch.equal(*weights)
    expected = one_process(layout, batches)
    assert (weights[0] - expected).norm() / expected.norm() < 1e-12


def other_weights(job: Any) -> None:
    with torch.no_grad():
        next(job.algo.model.parameters()).add_(group.rank())


def test_weights_are_made_equal_at_the_start(ranks):
    weights, _ = zip(*ranks.run(trained, OwnLayout, other_weights))
    assert torch.equal(*weights)


def one_rank_changes_its_weights(job: Any) -> None:
    if group.rank() == 1:
        job.plants["epoch ends"] = other_weights


def test_weights_that_differ_are_named(ranks):
    with pytest.raises(RankError, match=r"(?s)VerifyError.*end of epoch 1.*model\.0\.weight"):
        ranks.run(trained, OwnLayout, one_rank_changes_its_weights)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_state_continues_to_the_bit(layout):
    batches = [{"obs": torch.randn(4, 4), "actions": torch.randn(4, 4)} for _ in range(6)]
    whole, first, resumed = layout(), layout(), layout()
    for batch in batches:
        whole.train_on_batch(batch)
    for batch in batches[:3]:
        first.train_on_batch(batch)
    restore_model(resumed, copy.deepcopy(captured(first)))
    for batch in batches[3:]:
        resumed.train_on_batch(batch)
    assert host_algo.steps(whole) == host_algo.steps(resumed) == 6
    assert state_file.digest(captured(resumed)) == state_file.digest(captured(whole))


def test_each_part_counts_once():
    algo = InAnAgent()
    algo.optimizers = {"policy": algo.optimizer}
    assert [name for name, _ in host_algo.named_optimizers(algo)] == ["policy"]
    assert [name for name, _ in host_algo.named_roots(algo)] == ["nets", "model"]
    assert [name for name, _ in host_algo.parts(algo)] == ["", "agents[0]"]


def plan_of(scaling: str) -> str:
    """Collective: what is printed of an epoch of an algorithm that makes its optimizer itself."""
    printed = io.StringIO()
    plants = {
        "config": lambda job: job.options.update(lr_scaling=scaling),
        "construction": lambda job: (
            setattr(job, "algo", OwnLayout()) or setattr(job.algo, "job", job)
        ),
    }
    with swapped(sys, "__stdout__", printed), contextlib.redirect_stdout(printed):
        train(ToyJob(plants))
    return printed.getvalue()


@pytest.mark.parametrize("scaling", ["linear", "none"])
def test_a_learning_rate_that_is_not_scaled_is_in_the_plan(scaling, ranks):
    """`launch` asks for `linear`; the host's line has no rate of optim_params."""
    warning = (
        "ddp.lr_scaling=linear does not reach the optimizer self.optimizer (learning rate 0.01)"
    )
    main, other = ranks.run(plan_of, scaling)
    assert main.count(warning) == (scaling == "linear") and not other
