"""A step's batch is cut without losing or repeating a sample; what cannot accumulate is refused."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import DataError, PlanError
from robomimic_ddp.training import step
from robomimic_ddp.training.step import accumulation, compile
from robomimic_ddp.training.step.accumulation import split
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


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_sample_is_in_one_part_in_its_place(samples, count):
    batch = batch_of(samples)
    parts = split(batch, count)
    assert len(parts) == min(samples, count)
    sizes = [len(part["actions"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert parts.weights == [size / samples for size in sizes]
    joined = [int(one) for part in parts for one in part["actions"]]
    assert joined == list(range(samples))
    for part in parts:
        own = part["actions"].tolist()
        assert part["obs"]["x"][:, 0].tolist() == own and part["array"].tolist() == own
        assert part["obs"]["text"] == [f"t{i}" for i in own]
        assert part["lists"] == [[f"{step}-{i}" for i in own] for step in range(2)]
        assert part["goal_obs"] is None and part["scale"] == 2.0


def test_an_empty_batch_is_one_part():
    parts = split({"actions": torch.zeros(0, 2)}, 3)
    assert [tuple(part["actions"].shape) for part in parts] == [(0, 2)] and parts.weights == [0]


def test_an_array_of_another_length_is_named():
    with pytest.raises(DataError, match="batch/obs/odd has 3 entries in a batch of 4 samples"):
        split({"actions": torch.zeros(4), "obs": {"odd": torch.zeros(3)}}, 2)


class Algo:
    """Steps its optimizer by itself: `calls` says whether through the host's function."""

    def __init__(self, calls: bool = True) -> None:
        self.nets, self.calls = nn.ModuleDict({"policy": nn.Linear(1, 1)}), calls
        self.optimizers = {"policy": torch.optim.SGD(self.nets.parameters(), lr=0.1)}
        self.process_batch_for_training = lambda batch: batch

    def train_on_batch(self, batch: dict, epoch: int) -> dict:
        loss = self.nets["policy"](batch["actions"][:, None].float()).mean()
        if self.calls:
            backprop = sys.modules["tests.utils.torch_utils"].backprop_for_loss
            return {"loss": loss.detach(), "norm": backprop(self.nets, self.optimizers, loss)}
        return {"loss": loss.detach()}

    def log_info(self, info: dict) -> dict:
        return {"Loss": info["loss"].item(), "lr": 0.1, "norm": info.get("norm"), "text": "kept"}


@pytest.fixture
def torch_utils(monkeypatch):
    """The module that a host with tests' name would have."""
    module = ModuleType("tests.utils.torch_utils")
    module.backprop_for_loss = lambda net, optim, loss, max_grad_norm=None: 3.0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def prepared(algo: Algo, undo: ExitStack, accumulate: int = 3, is_parallel: bool = True) -> None:
    step.prepare(algo, Options(accumulate=accumulate), [algo.nets] * is_parallel, undo)


@pytest.mark.parametrize("is_parallel", [True, False])
def test_logs_are_the_mean_by_samples_and_everything_is_put_back(torch_utils, is_parallel):
    algo, host = Algo(), torch_utils.backprop_for_loss
    algo.optimizers = {"policy": [algo.optimizers["policy"]]}  # as a host's lists
    before = dict(vars(algo))
    with ExitStack() as undo:
        prepared(algo, undo, is_parallel=is_parallel)
        assert torch_utils.backprop_for_loss is not host
        batch = algo.process_batch_for_training({"actions": torch.arange(7)})
        info = algo.train_on_batch(batch, 1)
        whole = algo.nets["policy"](torch.arange(7)[:, None].float()).mean().item()
        log = algo.log_info(info)
        assert log["Loss"] == pytest.approx(whole, rel=1e-6)
        assert log["lr"] == 0.1 and log["norm"] == 3.0 and log["text"] == "kept"
        algo.nets.eval()
        assert isinstance(algo.process_batch_for_training({"actions": torch.arange(7)}), dict)
    assert vars(algo) == before and torch_utils.backprop_for_loss is host


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
    with ExitStack() as undo:
        prepared(algo, undo)
        for is_training, sizes in ((True, [2, 2, 3]), (False, [7])):
            algo.nets.train(is_training)
            batch = algo.process_batch_for_training({"actions": torch.arange(7)}, 1, **given)
            batch = algo.postprocess_batch_for_training(batch, 3, **given)
            info = algo.train_on_batch(batch, 5, **given)
            algo.log_info(info, 6, **given)
            assert seen == [
                *(("process", size, (1,), given) for size in sizes),
                *(("postprocess", size, (3,), given) for size in sizes),
                *(("train", True, (5,), given) for _ in sizes),
                *(("log", (6,), given) for _ in sizes),
            ]
            seen.clear()


class Average:
    """Either API of an average; `decay` is no method."""

    def __init__(self):
        self.calls, self.decay = [], 0.5

    def step(self, *given):
        self.calls.append(("step", *given))

    def copy_to(self, *given, **named):
        self.calls.append(("copy_to", *given))


@pytest.mark.parametrize("fails", [False, True])
def test_the_average_moves_once_a_step_and_comes_back_after_an_error(fails, torch_utils):
    algo, parts = Algo(), []
    algo.ema, train = Average(), algo.train_on_batch

    def train_on_batch(batch, epoch):
        parts.append(algo.train_on_batch.func.__self__.backward.part)
        algo.ema.step(len(parts))
        algo.ema.copy_to(len(parts))
        if fails:
            raise ValueError("in the first part")
        return train(batch, epoch)

    algo.train_on_batch = train_on_batch
    with ExitStack() as undo:
        prepared(algo, undo)
        accumulation = algo.train_on_batch.func.__self__
        batch = algo.process_batch_for_training({"actions": torch.arange(7)})
        with pytest.raises(ValueError) if fails else nullcontext():
            algo.train_on_batch(batch, 1)
        assert accumulation.backward.part == (1.0, True, True)
        assert not {"step", "copy_to"} & set(vars(algo.ema))
    if not fails:
        assert algo.ema.calls == [("step", 3), ("copy_to", 3)]
        assert parts == [(2 / 7, True, False), (2 / 7, False, False), (3 / 7, False, True)]


def test_a_mean_is_of_numbers_and_by_samples():
    weights = [0.25, 0.75]
    assert accumulation._mean([2.0, 4], weights) == 3.5
    assert (
        accumulation._mean([3, 3], weights) == 3 and accumulation._mean(["a", "b"], weights) == "b"
    )


def test_a_key_that_only_some_parts_log(torch_utils):
    infos = accumulation.Infos([{"loss": 1.0}, {"loss": 3.0}])
    infos.weights = [0.5, 0.5]
    algo = Algo()
    algo.log_info = lambda info: {
        "Loss": info["loss"],
        **({"Odd": 8.0} if info["loss"] > 2 else {}),
    }
    with ExitStack() as undo:
        prepared(algo, undo)
        assert algo.log_info(infos) == {"Loss": 2.0, "Odd": 8.0}


def test_one_micro_batch_changes_nothing(torch_utils):
    algo = Algo()
    before, host = dict(vars(algo)), torch_utils.backprop_for_loss
    with ExitStack() as undo:
        prepared(algo, undo, accumulate=1)
        assert vars(algo) == before and torch_utils.backprop_for_loss is host


@pytest.mark.bad_input
def test_what_cannot_accumulate_is_refused(torch_utils):
    algo = Algo()
    algo.optimizers["critic"] = algo.optimizers["policy"]
    refusal = r"it has several optimizers \(policy, critic\): a loss may depend"
    with ExitStack() as undo, pytest.raises(PlanError, match=refusal):
        prepared(algo, undo, is_parallel=False)
    algo = Algo(calls=False)
    with ExitStack() as undo:
        prepared(algo, undo)
        with pytest.raises(PlanError, match="train_on_batch does not call backprop_for_loss"):
            algo.train_on_batch(algo.process_batch_for_training({"actions": torch.ones(6)}), 1)
    del torch_utils.backprop_for_loss
    with ExitStack() as undo, pytest.raises(PlanError, match="its host has no utils.torch_utils"):
        prepared(SimpleNamespace(nets=nn.ModuleDict()), undo)


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
    monkeypatch.setitem(step.prepare.__globals__, "_device", lambda nets: torch.device(device))
    options = Options(accumulate=accumulate, compile="reduce-overhead", preset="safe")
    algo = Algo()
    refusal = pytest.raises(PlanError, match="compile=reduce-overhead .*CUDA graphs .*=true")
    with ExitStack() as undo, refusal if is_refused else nullcontext():
        step.prepare(algo, options, [algo.nets], undo)
