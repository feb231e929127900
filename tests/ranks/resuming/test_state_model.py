"""A model's state, captured and restored: the steps that follow are the same to the bit."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import plain, restore_model, state_file
from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.errors import CheckpointError
from tests.averages import build, of_host
from tests.runs import captured

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


def make(mode, module_key, old_api, schedule, optimizer):
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
    algo.ema = of_host(nets, old_api)
    if old_api is None:
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


KINDS = [
    *((mode, key, api, "lambda", "AdamW") for mode in ("single", "dp") for key in (False, True)
      for api in ("model=", "parameters=")),
    *(("single", False, "parameters=", name, "AdamW") for name in ("multistep", "cosine", "chain")),
    *(("single", False, "parameters=", "lambda", name) for name in ("Adam", "SGD", "RMSprop")),
]  # fmt: skip


@pytest.mark.parametrize("mode, module_key, api, schedule, optimizer", KINDS)
def test_a_state_file_continues_to_the_bit(
    mode, module_key, api, schedule, optimizer, old_training_utils, tmp_path
):
    """On several ranks: test_resumed_host.py, test_resumed_algorithms.py."""
    old_api = old_training_utils if api == "model=" else None
    kind = (mode, module_key, old_api, schedule, optimizer)
    with rng.kept():
        whole, resumed = make(*kind), make(*kind)
        for _ in range(5):
            step(whole)
        random = rng.capture()
        state_file.write(tmp_path, {"model": captured(whole), "random": random}, best=False)
        saved = state_file.read_file(tmp_path / state_file.STATE)
        step(resumed)  # a used optimizer, whose state is replaced
        restore_model(resumed, saved["model"])
        assert state_file.digest(captured(resumed)) == state_file.digest(saved["model"])
        schedules = [vars(algo.lr_schedulers["policy"]).values() for algo in (whole, resumed)]
        assert [*map(type, schedules[0])] == [*map(type, schedules[1])]
        for algo in (whole, resumed):
            rng.restore(saved["random"])
            for _ in range(5):
                step(algo)
    assert state_file.digest(captured(resumed)) == state_file.digest(captured(whole))


class Part:
    """Of a hierarchical algorithm, as the host's: it has no nets, its parts have them."""

    def __init__(self, **held):
        vars(self).update(held)

    def serialize(self):
        raise NotImplementedError


def test_the_parts_of_a_hierarchical_algorithm():
    def algo():
        planner, actor = (vars(make("single", False, None, "cosine", "AdamW")) for _ in range(2))
        return Part(nets=None, planner=Part(**planner), actor=Part(**actor))

    trained, fresh = algo(), algo()
    for _ in range(3):
        step(trained.planner)
    saved = captured(trained)
    assert set(saved) == {"", "planner", "actor"}
    restore_model(fresh, saved)
    assert state_file.digest(captured(fresh)) == state_file.digest(saved)
    assert fresh.planner.steps == 3 and fresh.actor.steps == 0


def test_a_member_of_an_enumeration_is_no_number_of_a_state():
    class Mode(enum.IntEnum):
        FAST = 1

    algo = SimpleNamespace(nets=nn.ModuleDict(), mode=Mode.FAST, steps=3, is_ready=False)
    assert captured(algo)[""]["numbers"] == {"steps": 3, "is_ready": False}


def test_values_of_a_state_are_plain():
    weight = torch.nn.Parameter(torch.ones(2))
    found = plain(
        {
            "numbers": (1, 2.5, True, None, "text", np.float32(0.5), np.bool_(True)),
            np.int64(3): OrderedDict(array=np.ones((2, 2)).T, weight=weight),
        }
    )
    assert found["numbers"] == [1, 2.5, True, None, "text", 0.5, True]
    assert {type(one) for one in found["numbers"]} == {int, float, bool, type(None), str}
    assert list(found) == ["numbers", 3] and type(found[3]) is dict
    assert torch.equal(found[3]["array"], torch.ones(2, 2, dtype=torch.float64))
    assert found[3]["weight"].data_ptr() == weight.data_ptr()
    assert not found[3]["weight"].requires_grad


@pytest.mark.parametrize(
    "value, place",
    [
        ({"a": [0, {"b": {1}}]}, "state.a[1].b is a set"),
        ({"a": {(1, object()): 2}}, "a key of state.a[1] is a object"),
        (object(), "state is a object"),
        ([np.datetime64("2026-01-01")], "state[0] is a date"),
    ],
)
def test_a_value_that_is_not_plain_is_named(value, place):
    with pytest.raises(CheckpointError) as caught:
        plain(value)
    assert str(caught.value).startswith(place + ", which a state file cannot contain")


def small(**changes):
    """One net, its copy, an optimizer in a list, an average of either form."""
    net = nn.BatchNorm1d(2)
    held = {
        "nets": net,
        "ema_nets": nn.Linear(1, 1),
        "optimizers": {"policy": [torch.optim.SGD(net.parameters(), lr=0.5)], "none": None},
        "lr_schedulers": {},
        "ema": SimpleNamespace(shadow_params=[torch.zeros(2)], decay=0.5, name="kept"),
        "steps": 3,
        "ratio": np.float32(0.25),
        "text": "kept",
    }
    held.update(changes)
    return Part(**{name: value for name, value in held.items() if value != "left out"})


def numbers_of_ranks(saved):
    """This rank's numbers after it restored the main rank's."""
    rank = group.rank()
    model = small(gpu_seed=rank, node_time=7, steps=rank)
    restore_model(model, saved)
    return model.gpu_seed, model.node_time, model.steps


def test_what_is_a_ranks_by_its_name_stays_where_ranks_differ(ranks):
    saved = captured(small(gpu_seed=0, node_time=9, steps=5))
    assert ranks.run(numbers_of_ranks, saved) == [(0, 9, 5), (1, 9, 5)]


def test_everything_is_put_back_in_place():
    saved = captured(small())
    saved[""]["nets"]["running_mean"] = torch.tensor([1.0, 2.0])
    saved[""]["ema"]["shadow_params"] = [torch.tensor([3.0, 4.0])]
    saved[""]["ema"]["numbers"] = {"decay": 0.125, "new": 1}
    saved[""]["numbers"] = {"steps": 8, "ratio": 0.75, "new": 1}
    saved[""]["optimizers"]["policy"][0]["param_groups"][0]["lr"] = 0.25
    saved[""]["optimizers"]["policy"][0]["state"] = {0: {"count": 3}}
    model = small()
    shadow, mean = model.ema.shadow_params[0], model.nets.running_mean
    restore_model(model, saved)
    assert mean.tolist() == [1.0, 2.0] and shadow.tolist() == [3.0, 4.0]
    assert (model.ema.decay, model.steps, model.ratio) == (0.125, 8, 0.75)
    assert not hasattr(model, "new") and not hasattr(model.ema, "new")
    assert model.optimizers["policy"][0].param_groups[0]["lr"] == 0.25
    assert model.optimizers["policy"][0].state[model.nets.weight] == {"count": 3}
    restore_model(small(nets=None), captured(small(nets=None)))


def test_what_trains_outside_the_hosts_own_attributes_is_put_back():
    def made(rate):
        head = nn.Linear(1, 1)
        return small(head=head, optimizer=torch.optim.SGD(head.parameters(), lr=rate))

    saved, model = captured(made(0.5)), made(0.25)
    restore_model(model, saved)
    assert torch.equal(model.head.weight, saved[""]["modules"]["head"]["weight"])
    assert model.optimizer.param_groups[0]["lr"] == 0.5


SGD = torch.optim.SGD([torch.zeros(1)], lr=1)
NOT_LOADED = "Error.* in loading state_dict"


def averaged(size):
    """The change to an average in a module of that size."""
    module = None if size is None else nn.Linear(size, 1)
    return {"ema": SimpleNamespace(averaged_model=module)}


def optimized(*policy, none=None):
    """The change to a list of optimizers, and to the optimizer named "none"."""
    return {"optimizers": {"policy": list(policy), "none": none}}


@pytest.mark.parametrize(
    "before, after, difference",
    [
        ({}, {"nets": None}, "nets: only the state has it"),
        ({"nets": None}, {}, "nets: only the model has it"),
        ({}, {"ema_nets": nn.Linear(2, 1)}, f"ema_nets: {NOT_LOADED}"),
        ({}, {"ema_nets": None}, "ema_nets: only the state has it"),
        ({"head": nn.Linear(2, 1)}, {"head": nn.Linear(1, 1)}, f"head: {NOT_LOADED}"),
        ({}, {"ema": None}, "ema: averaging was on"),
        ({"ema": None}, {}, "ema: averaging was off"),
        ({}, averaged(1), "ema: another form of EMAModel"),
        ({}, {"ema": SimpleNamespace(shadow_params=[torch.zeros(3)])}, "shadow_params: other sh"),
        (averaged(2), averaged(1), f"ema.averaged_model: {NOT_LOADED}"),
        (averaged(2), averaged(None), "ema.averaged_model: only the state has it"),
        ({}, {"optimizers": {"policy": [SGD]}}, r"saved \['none', 'policy'\], the model"),
        ({}, optimized(SGD, SGD), r"optimizers\['policy'\]: 1 were saved, the model has 2"),
        (optimized(SGD), optimized(SGD, none=SGD), r"\['none'\]: none was saved, the model has"),
        ({}, optimized(None), r"optimizers\['policy'\]\[0\]: one was saved, the model has none"),
        ({}, optimized(SGD), r"optimizers\['policy'\]\[0\]: loaded state dict"),
    ],
)
def test_the_difference_to_another_model_is_named(before, after, difference):
    models = [Part(planner=small(**changes)) for changes in (before, after)]
    saved = captured(models[0])
    with pytest.raises(CheckpointError, match=rf"describes: planner.*{difference}"):
        restore_model(models[1], saved)


def test_a_part_that_is_missing_is_named():
    saved = captured(Part(planner=small()))
    assert list(saved) == ["", "planner"]
    nested = Part(planner=Part(actor=small()))
    assert list(captured(nested)) == ["", "planner", "planner.actor"]
    words = r"parts of the algorithm: saved \['', 'planner'\], the model has \['', 'planner', "
    with pytest.raises(CheckpointError, match=words):
        restore_model(nested, saved)


def test_moments_have_the_order_in_memory_of_their_parameters():
    """What the main rank lends is row-major; torch's fused optimizers do not look at strides."""

    def made():
        net = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        adam = torch.optim.Adam(net.parameters())
        algo = SimpleNamespace(nets=nn.ModuleDict({"policy": net}), optimizers={"policy": adam})
        net(torch.randn(2, 3, 8, 8)).square().sum().backward()
        adam.step()
        return SimpleNamespace(**vars(algo), lr_schedulers={})

    algo, other = made(), made()
    lent = tree.mapped(
        lambda value: value.contiguous() if torch.is_tensor(value) else value, captured(algo)
    )
    restore_model(other, lent)
    weight, source = other.nets["policy"].weight, algo.nets["policy"].weight
    moments = other.optimizers["policy"].state[weight]["exp_avg"]
    assert moments.stride() == weight.stride() == source.stride()
    torch.testing.assert_close(moments, algo.optimizers["policy"].state[source]["exp_avg"])
