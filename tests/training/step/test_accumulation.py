"""A step's batch is cut without losing or repeating a sample; what cannot accumulate is refused."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import DataError, PlanError
from robomimic_ddp.training import presets
from robomimic_ddp.training.step import compile
from robomimic_ddp.training.step.accumulation import split
from robomimic_ddp.training.step.backprop import WHOLE
from tests.versions import NEEDS_CALL_PLACE


def batch_of(samples: int) -> dict:
    numbers = torch.arange(samples)
    return {
        "obs": {"x": numbers[:, None].float(), "text": [f"t{i}" for i in range(samples)]},
        "lists": [[f"{step}-{i}" for i in range(samples)] for step in range(2)],
        "actions": numbers,
        "array": np.arange(samples),
        "goal_obs": None,
        "scale": 2.0,
    }


@given(st.integers(0, 40), st.integers(1, 9))
@example(2, 2)  # as many samples as lists
def test_every_sample_is_in_one_part_in_its_place(samples, count):
    batch = batch_of(samples)
    parts = split(batch, count)
    assert len(parts) == max(1, min(samples, count))
    sizes = [len(part["actions"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert parts.weights == [size / max(1, samples) for size in sizes]
    joined = [int(one) for part in parts for one in part["actions"]]
    assert joined == list(range(samples))
    for part in parts:
        own = part["actions"].tolist()
        assert part["obs"]["x"][:, 0].tolist() == own and part["array"].tolist() == own
        assert part["obs"]["text"] == [f"t{i}" for i in own]
        assert part["lists"] == [[f"{step}-{i}" for i in own] for step in range(2)]
        assert part["goal_obs"] is None and part["scale"] == 2.0


def test_an_array_of_another_length_is_named():
    with pytest.raises(DataError, match="batch/obs/odd has 3 entries in a batch of 4 samples"):
        split({"actions": torch.zeros(4), "obs": {"odd": torch.zeros(3)}}, 2)
    with pytest.raises(DataError, match="batch/odd has 3 entries"):
        split({"actions": torch.zeros(4), "odd": [torch.zeros(3)]}, 2)


def test_a_dictionary_of_another_class_stays_one():
    (part, _) = split(OrderedDict(actions=torch.zeros(4), obs=OrderedDict(x=torch.ones(4))), 2)
    assert type(part) is type(part["obs"]) is OrderedDict and part["obs"]["x"].tolist() == [1, 1]


class Algo:
    """Steps its optimizer by itself: `calls` says whether through the host's function."""

    def __init__(self, calls: bool = True) -> None:
        self.nets, self.calls = nn.ModuleDict({"policy": nn.Linear(1, 1)}), calls
        self.optimizer = torch.optim.SGD(self.nets.parameters(), lr=0.1)
        self.optimizers = {"policy": self.optimizer}
        self.process_batch_for_training = lambda batch: batch

    def train_on_batch(self, batch: dict, epoch: int) -> dict:
        loss = self.nets["policy"](batch["actions"][:, None].float()).mean()
        end = int(batch["actions"].max())
        info = {"loss": loss.detach(), "end": end, "is_last": end == 6}
        if self.calls:
            backprop = sys.modules["tests.utils.torch_utils"].backprop_for_loss
            info["norm"] = backprop(self.nets, self.optimizer, loss)
        return info

    def log_info(self, info: dict) -> dict:
        log = {"Loss": info["loss"].item(), "lr": 0.1, "norm": info.get("norm"), "count": 3}
        log["text"] = f"up to {info['end']}"
        return {**log, "Odd": 8.0} if info["is_last"] else log


@pytest.fixture
def torch_utils(monkeypatch):
    """The module that a host with tests' name would have."""
    module = ModuleType("tests.utils.torch_utils")
    module.backprop_for_loss = lambda net, optim, loss: 3.0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def prepared(algo: Algo, undo: ExitStack, accumulate: int = 3, is_parallel: bool = True) -> None:
    presets.prepare(algo, Options(accumulate=accumulate), [algo.nets] * is_parallel, undo)


def step(net, optim, loss, max_grad_norm=None):
    """What the host's function does."""
    optim.zero_grad()
    loss.backward()
    optim.step()
    return 3.0


@pytest.mark.parametrize("is_parallel", [True, False])
def test_logs_are_the_mean_by_samples_and_everything_is_put_back(torch_utils, is_parallel):
    algo, host = Algo(), torch_utils.backprop_for_loss
    algo.optimizers = {"policy": [algo.optimizer]}  # as a host's lists
    before = dict(vars(algo))
    with ExitStack() as undo:
        prepared(algo, undo, is_parallel=is_parallel)
        assert torch_utils.backprop_for_loss is not host
        batch = algo.process_batch_for_training({"actions": torch.arange(7)})
        info = algo.train_on_batch(batch, 1)
        whole = algo.nets["policy"](torch.arange(7)[:, None].float()).mean().item()
        log = algo.log_info(info)
        assert log["Loss"] == pytest.approx(whole, rel=1e-6)
        assert log["lr"] == 0.1 and log["text"] == "up to 6"
        assert log["count"] == 3 and type(log["count"]) is int
        assert log["norm"] == 3.0, "the norm of the step, which the last part has"
        assert log["Odd"] == 8.0, "only the last part logs it"
        algo.nets.eval()
        assert isinstance(algo.process_batch_for_training({"actions": torch.arange(7)}), dict)
    assert vars(algo) == before and torch_utils.backprop_for_loss is host


def zero_first(algo: Algo, zero: Callable) -> None:
    train = algo.train_on_batch
    algo.train_on_batch = lambda *args: (zero(), train(*args))[1]


def zero_last(algo: Algo, zero: Callable) -> None:
    train = algo.train_on_batch
    algo.train_on_batch = lambda *args: (train(*args), zero())[0]


@pytest.mark.parametrize("by", ["optimizer", "nets", "policy"])
@pytest.mark.parametrize("place", [None, zero_first, zero_last])
def test_two_steps_in_parts_are_those_with_the_whole_batches(torch_utils, by, place):
    """The gradients of a step before, and what a gradient was at first, are not in the next; those
    of a part are, wherever the host zeroes gradients.
    """
    algo = Algo()
    owner = {"optimizer": algo.optimizer, "nets": algo.nets, "policy": algo.nets["policy"]}[by]
    elsewhere = nn.Linear(1, 1)

    def backprop(net, optim, loss, max_grad_norm=None):
        owner.zero_grad()
        elsewhere.zero_grad()
        assert elsewhere.weight.grad is None, "no optimizer of the algorithm has it"
        loss.backward()
        optim.step()
        return 3.0

    torch_utils.backprop_for_loss = backprop
    if place is not None:
        place(algo, lambda: owner.zero_grad())
    (weight, _) = algo.nets.parameters()
    weight.grad = torch.full_like(weight, 5.0)
    begun, batches = weight.item(), [torch.arange(7), torch.arange(3, 11)]
    with ExitStack() as undo:
        prepared(algo, undo, is_parallel=False)
        for actions in batches:
            elsewhere.weight.grad = torch.ones(1, 1)
            algo.train_on_batch(algo.process_batch_for_training({"actions": actions}), 1)
    gradients = sum(actions.float().mean().item() for actions in batches)
    assert weight.item() == pytest.approx(begun - 0.1 * gradients, abs=1e-5)
    owner.zero_grad()
    assert weight.grad is None, "zero_grad is the host's again"


def test_the_hosts_methods_are_called_for_each_part_with_all_that_it_gives(torch_utils):
    algo, seen = Algo(), []

    def process(batch, *more, **named):
        seen.append(("process", len(batch["actions"]), more, named))
        return batch

    def postprocess(batch, *more, **named):
        seen.append(("postprocess", len(batch["actions"]), more, named))
        return {**batch, "done": True}

    train, log = algo.train_on_batch, algo.log_info
    algo.process_batch_for_training = process
    algo.postprocess_batch_for_training = postprocess
    algo.train_on_batch = lambda batch, *more, **named: (
        seen.append(("train", batch["done"], more, named)) or train(batch, *more)
    )
    algo.log_info = lambda info, *more, **named: seen.append(("log", more, named)) or log(info)
    given = {"a": 2}

    def of_part(size: int) -> list:
        """A part is processed, and so on the GPU, after those before it are trained."""
        return [
            ("process", size, (1,), given),
            ("postprocess", size, (3,), given),
            ("train", True, (5,), given),
        ]

    with ExitStack() as undo:
        prepared(algo, undo)
        for is_training, sizes in ((True, [2, 2, 3]), (False, [7])):
            algo.nets.train(is_training)
            batch = algo.process_batch_for_training({"actions": torch.arange(7)}, 1, **given)
            batch = algo.postprocess_batch_for_training(batch, 3, **given)
            info = algo.train_on_batch(batch, 5, **given)
            algo.log_info(info, 6, **given)
            assert seen == [
                *(call for size in sizes for call in of_part(size)),
                *(("log", (6,), given) for _ in sizes),
            ]
            seen.clear()


def test_after_an_error_in_a_part_the_average_moves_and_the_next_step_is_whole(torch_utils):
    """tests/ranks/gradients/test_accumulation.py has the average of a step without an error."""
    algo = Algo()
    algo.ema = SimpleNamespace(step=lambda: 1, copy_to=lambda: 2)

    def train_on_batch(batch, epoch):
        assert algo.ema.step() is algo.ema.copy_to() is None, "it moves at the last part only"
        raise ValueError("in the first part")

    algo.train_on_batch = train_on_batch
    with ExitStack() as undo:
        prepared(algo, undo)
        batch = algo.process_batch_for_training({"actions": torch.arange(7)})
        with pytest.raises(ValueError, match="in the first part"):
            algo.train_on_batch(batch, 1)
        assert (algo.ema.step(), algo.ema.copy_to()) == (1, 2)
        assert sys.modules["tests.utils.torch_utils"].backprop_for_loss.part == WHOLE


@pytest.mark.bad_input
def test_what_cannot_accumulate_is_refused(torch_utils):
    algo = Algo()
    algo.optimizers["critic"] = torch.optim.SGD(algo.nets.parameters(), lr=0.1)
    refusal = r"it has several optimizers \(policy, critic\): a loss may depend"
    with ExitStack() as undo, pytest.raises(PlanError, match=refusal):
        prepared(algo, undo, is_parallel=False)
    algo = Algo(calls=False)
    with ExitStack() as undo:
        prepared(algo, undo)
        with pytest.raises(PlanError, match="Algo.train_on_batch does not call backprop_for_loss"):
            algo.train_on_batch(algo.process_batch_for_training({"actions": torch.ones(6)}), 1)
    algo = Algo()
    algo.temperature = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=0.1)
    train = algo.train_on_batch
    algo.train_on_batch = lambda *args: (train(*args), algo.temperature.step())[0]
    with ExitStack() as undo:
        prepared(algo, undo)
        refusal = "optimizer self.temperature outside of .* a step for each .* with ddp.accumulate="
        with pytest.raises(PlanError, match=refusal):
            algo.train_on_batch(algo.process_batch_for_training({"actions": torch.ones(6)}), 1)
        algo.train_on_batch = train
        algo.temperature.step()  # as on_gradient_step does, once a step
    algo.temperature.step()
    algo, once = Algo(), Algo.train_on_batch
    algo.train_on_batch = lambda *args: [once(algo, *args), once(algo, *args)][1]
    with ExitStack() as undo:
        prepared(algo, undo)
        with pytest.raises(PlanError, match="2 times of the host's torch_utils, so a loss would"):
            algo.train_on_batch(algo.process_batch_for_training({"actions": torch.ones(6)}), 1)
    del torch_utils.backprop_for_loss
    with ExitStack() as undo, pytest.raises(PlanError, match="its host has no utils.torch_utils"):
        prepared(SimpleNamespace(nets=nn.ModuleDict()), undo)


@pytest.mark.bad_input
@pytest.mark.parametrize("place", ["train_on_batch", "on_gradient_step", "forward"])
def test_a_target_that_moves_in_every_part_is_refused(torch_utils, place):
    """A buffer may: BatchNorm's moves in every forward."""
    torch_utils.backprop_for_loss = step
    algo, net = Algo(), nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))
    algo.nets["policy"] = net
    algo.target = copy.deepcopy(net).requires_grad_(False)
    algo.optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    algo.optimizers = {"policy": algo.optimizer}
    train = algo.train_on_batch

    def move() -> None:
        algo.target[1].bias.data.lerp_(net[1].bias, 0.1)

    algo.train_on_batch = lambda *args: (train(*args), place == "train_on_batch" and move())[0]
    refusal = r"Algo.train_on_batch changes target.1.bias \(and 0 other .* Move it in on_gradient"
    refused = pytest.raises(PlanError, match=refusal)
    with ExitStack() as undo, refused if place == "train_on_batch" else nullcontext():
        prepared(algo, undo, is_parallel=False)
        for rate in (0.0, 0.1, 0.1, 0.1):  # a warm-up's
            algo.optimizer.param_groups[0]["lr"] = rate
            batch = algo.process_batch_for_training({"actions": torch.arange(7) ** 2})
            algo.train_on_batch(batch, 1)
            if place == "on_gradient_step":
                move()


@NEEDS_CALL_PLACE
@pytest.mark.bad_input
@pytest.mark.parametrize(
    "device, accumulate, is_refused", [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)]
)
def test_cuda_graphs_take_no_micro_batches(
    device, accumulate, is_refused, torch_utils, monkeypatch
):
    """A replayed graph would overwrite the gradients of the micro-batch before."""
    monkeypatch.setattr(compile, "why_not", lambda *_: None)
    monkeypatch.setattr(compile, "BACKEND", "eager")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setitem(presets.prepare.__globals__, "_device", lambda nets: torch.device(device))
    options = Options(accumulate=accumulate, compile="reduce-overhead", preset="safe")
    algo = Algo()
    refusal = pytest.raises(PlanError, match="compile=reduce-overhead .*CUDA graphs .*=true")
    with ExitStack() as undo, refusal if is_refused else nullcontext():
        presets.prepare(algo, options, [algo.nets], undo)
