"""A model's state, captured and restored: the steps that follow are the same to the bit."""

from __future__ import annotations

import copy
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp import group, random_streams
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.state import capture_model, files, restore_model
from tests.parity.test_ema import build, old_training_utils  # noqa: F401

SCHEDULES = {
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 4, 9], 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "chain": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=4),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [4],
    ),
}


def make(mode, module_key, old_api, schedule, optimizer="AdamW"):
    """The host's Algo as the retrofit sees it, with either diffusers API."""
    nets = build(mode, module_key)
    adam = getattr(torch.optim, optimizer)(nets.parameters(), lr=1e-2)
    algo = SimpleNamespace(
        nets=nets,
        optimizers={"policy": adam},
        lr_schedulers={"policy": SCHEDULES[schedule](adam), "none": None},
        steps=0,
        action_check_done=False,
    )
    if old_api is not None:
        spec = importlib.util.spec_from_file_location("old_training_utils", old_api)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        algo.ema = module.EMAModel(model=nets, power=0.75)
    else:
        from diffusers.training_utils import EMAModel

        algo.ema = EMAModel(parameters=nets.parameters(), power=0.75, use_ema_warmup=True)
        algo.ema_nets = copy.deepcopy(nets).requires_grad_(False)
    return algo


def step(algo):
    policy, optimizer = algo.nets["policy"], algo.optimizers["policy"]
    optimizer.zero_grad()
    x = torch.randn(3, 4)
    (policy["noise_pred_net"](policy["obs_encoder"](x)) - torch.randn(3, 4)).pow(
        2
    ).mean().backward()
    optimizer.step()
    algo.lr_schedulers["policy"].step()
    if hasattr(algo, "ema_nets"):
        algo.ema.step(algo.nets.parameters())
        algo.ema.copy_to(algo.ema_nets.parameters())
    else:
        algo.ema.step(algo.nets)
    algo.steps += 1
    algo.action_check_done = True


def steps_and_resumed(folder, mode, *kind):
    """(digest after 10 steps, digest after 5 + a new process's 5); a file lies between."""
    algo = make(mode, *kind)
    for _ in range(5):
        step(algo)
    captured = {"model": capture_model(algo), "random": random_streams.capture()}
    if group.is_main():
        files.write(folder, captured, best=False)
    group.barrier()
    for _ in range(5):
        step(algo)
    whole = files.digest(capture_model(algo))
    random_streams.restore(captured["random"])  # the rank's own
    saved = group.broadcast_nest(files.read(folder)[0] if group.is_main() else None)
    again = make(mode, *kind)
    step(again)  # a used optimizer, whose state is replaced
    restore_model(again, saved["model"])
    random_streams.restore(captured["random"])
    at_once = files.digest(capture_model(again)) == files.digest(saved["model"])
    for _ in range(5):
        step(again)
    return whole, files.digest(capture_model(again)), at_once


@pytest.mark.parametrize("api", ["model=", "parameters="])
@pytest.mark.parametrize("module_key", [False, True])
@pytest.mark.parametrize("mode", ["single", "dp"])
def test_one_process(api, module_key, mode, old_training_utils, tmp_path):  # noqa: F811
    old_api = old_training_utils if api == "model=" else None
    with random_streams.kept():
        whole, resumed, at_once = steps_and_resumed(tmp_path, mode, module_key, old_api, "lambda")
    assert resumed == whole and at_once


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule, tmp_path):
    with random_streams.kept():
        whole, resumed, _ = steps_and_resumed(tmp_path, "single", False, None, schedule)
    assert resumed == whole


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "RMSprop"])
def test_optimizers(optimizer, tmp_path):
    with random_streams.kept():
        whole, resumed, _ = steps_and_resumed(tmp_path, "single", False, None, "lambda", optimizer)
    assert resumed == whole


@pytest.mark.parametrize("api", ["model=", "parameters="])
@pytest.mark.parametrize("module_key", [False, True])
def test_two_ranks(api, module_key, old_training_utils, ranks, tmp_path):  # noqa: F811
    old_api = old_training_utils if api == "model=" else None
    (whole0, resumed0, one0), (whole1, resumed1, one1) = ranks.run(
        steps_and_resumed, tmp_path, "ddp", module_key, old_api, "cosine"
    )
    assert whole0 == whole1 == resumed0 == resumed1 and one0 and one1


def fewer_nets(algo):
    del algo.nets["policy"]["obs_encoder"]


def no_average(algo):
    algo.ema = None


def wider(algo):
    algo.nets["policy"]["noise_pred_net"] = nn.Linear(6, 5)


def another_optimizer(algo):
    algo.optimizers["critic"] = algo.optimizers["policy"]


@pytest.mark.parametrize("change", [fewer_nets, no_average, wider, another_optimizer])
def test_another_model_is_one_clear_error(change):
    saved = capture_model(make("single", False, None, "cosine"))
    other = make("single", False, None, "cosine")
    change(other)
    with pytest.raises(CheckpointError, match="another model than the config describes"):
        restore_model(other, saved)


class Part:
    """Of a hierarchical algorithm, as the host's: no nets of its own, parts that have them."""

    def __init__(self, **held):
        vars(self).update(held)

    def serialize(self):
        raise NotImplementedError


def test_the_parts_of_a_hierarchical_algorithm():
    def algo():
        planner, actor = (vars(make("single", False, None, "cosine")) for _ in range(2))
        return Part(nets=None, planner=Part(**planner), actor=Part(**actor))

    trained, fresh = algo(), algo()
    for _ in range(3):
        step(trained.planner)
    saved = capture_model(trained)
    assert set(saved) == {"", "planner", "actor"}
    restore_model(fresh, saved)
    assert files.digest(capture_model(fresh)) == files.digest(saved)
    assert fresh.planner.steps == 3 and fresh.actor.steps == 0
