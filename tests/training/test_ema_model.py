"""Our averaged copy has the bits and counters of either EMAModel of diffusers and the names of
both, and needs no diffusers.
"""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

import robomimic_ddp.api as DDPUtils
from robomimic_ddp.checkpoint import restore_model
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.errors import WrapError
from robomimic_ddp.training.step import ema
from tests.averages import build, diffusers_average
from tests.runs import captured

SETTINGS = [{"power": 0.75}, {"power": 0.5, "update_after_step": 3, "inv_gamma": 2.0}, {}]
COUNTERS = ("optimization_step", "decay", "cur_decay_value", "min_value", "max_value", "min_decay")


def nets(module_key=False):
    """With a frozen parameter and a buffer."""
    torch.manual_seed(0)
    made = build("single", module_key)
    next(made.parameters()).requires_grad_(False)
    return made


def move(net, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) / 10)


def theirs(api, net, old, **settings):
    """diffusers' own: 0.11.1 for "model=", the installed one for "parameters="."""
    return diffusers_average(net, old if api == "model=" else None, **settings)


def ours(api, net, **settings):
    if api == "parameters=":
        return DDPUtils.averaged_copy(parameters=net.parameters(), **settings)
    return DDPUtils.averaged_copy(model=net, **settings)


def counters(average):
    return {name: vars(average)[name] for name in COUNTERS if name in vars(average)}


@pytest.mark.parametrize("settings", SETTINGS, ids=["power", "more", "defaults"])
@pytest.mark.parametrize("api", ["model=", "parameters=", "parameters= with warm-up"])
@pytest.mark.parametrize("module_key", [False, True])
def test_the_bits_of_diffusers(api, module_key, settings, old_training_utils):
    api, _, warm = api.partition(" with ")
    settings = {**settings, "use_ema_warmup": True} if warm else settings
    net = nets(module_key)
    expected = theirs(api, net, old_training_utils, **settings)
    found = ours(api, net, **settings)
    for number in range(12):
        move(net, number)
        given = net if api == "model=" else net.parameters()
        expected.step(net if api == "model=" else net.parameters())
        found.step(given)
        assert counters(found) == counters(expected)
        if api == "model=":
            one, two = (average.averaged_model.state_dict() for average in (found, expected))
            assert list(one) == list(two)
            pairs = zip(one.values(), two.values())
        else:
            pairs = zip(found.shadow_params, expected.shadow_params)
        assert all(torch.equal(*pair) for pair in pairs)
    assert set(vars(found)) >= set(vars(expected)) - {"temp_stored_params"}


def signatures(kind):
    """Of the constructor and the public methods; the name of **keywords does not matter."""
    methods = {
        name: inspect.signature(member).parameters.values()
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_"))
    }
    return {
        name: [(one.kind, one.kind is one.VAR_KEYWORD or (one.name, one.default)) for one in found]
        for name, found in methods.items()
    }


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_takes_whatever_the_class_takes_that_it_stands_for(api, old_training_utils):
    expected = signatures(type(theirs(api, nets(), old_training_utils)))
    expected.pop("save_pretrained", None)  # for diffusers' own models, which hosts' nets are not
    mine = type(ours(api, nets()))
    found = {**signatures(mine.__mro__[1]), **signatures(mine)}
    for name, taken in expected.items():
        assert [one for one in found[name] if one in taken] == taken, name
        more = [one for one in found[name] if one not in taken]
        assert all(one[1] is True or one[1][1] is not inspect.Parameter.empty for one in more), name


def test_a_model_beside_the_parameters_is_for_nothing():
    """As in current diffusers, which takes any further name."""
    net = nets()
    params = list(net.parameters())[:1]
    average = DDPUtils.averaged_copy(model=net, power=0.75, parameters=params)
    average.step(params)
    assert len(average.shadow_params) == 1 and average.power == 0.75


def test_a_host_may_give_its_average_a_module():
    net = nets()
    average = ours("parameters=", net)
    average.averaged_model = copy.deepcopy(net)
    move(net, 1)
    average.step(net.parameters())
    average.copy_to(average.averaged_model.parameters())
    pairs = zip(average.averaged_model.parameters(), average.shadow_params)
    assert all(torch.equal(*pair) for pair in pairs)
    named = dict(host_algo.named_state(SimpleNamespace(nets=net, ema=average)))
    assert {name.partition(".")[0] for name in named} == {"nets", "averaged_model", "ema"}


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_the_names_of_both(api):
    net = nets()
    average = ours(api, net, power=0.75)
    for number, given in enumerate((net, net.parameters(), list(net.parameters()), net)):
        move(net, number)
        average.step(given)
    assert average.optimization_step == 4
    assert 0 < average.cur_decay_value < 1
    assert [one.shape for one in average.shadow_params] == [one.shape for one in net.parameters()]
    before = copy.deepcopy(net.state_dict())
    average.store(net.parameters())
    average.copy_to(net.parameters())
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), average.shadow_params))
    average.restore(net.parameters())
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="without a store"):
        average.restore(net.parameters())
    average.shadow_params = [torch.zeros_like(one) for one in net.parameters()]
    assert all(not one.any() for one in average.shadow_params)
    average.to(dtype=torch.float64)
    assert {one.dtype for one in average.shadow_params} == {torch.float64}


def test_a_module_exists_where_nets_were_given():
    assert DDPUtils.averaged_copy(model=nets()).averaged_model.training is False
    of_parameters = DDPUtils.averaged_copy(parameters=nets().parameters())
    assert not hasattr(of_parameters, "averaged_model")
    with pytest.raises(AttributeError, match="model=nets"):
        of_parameters.averaged_model  # noqa: B018


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_state_dict_goes_to_diffusers_and_comes_back(api):
    from diffusers.training_utils import EMAModel

    net = nets()
    average = ours(api, net, power=0.6)
    for number in range(5):
        move(net, number)
        average.step(net.parameters())
    installed = EMAModel(parameters=net.parameters())
    installed.load_state_dict(average.state_dict())
    assert installed.optimization_step == 5 and installed.power == 0.6
    again = ours(api, nets())
    again.load_state_dict(installed.state_dict())
    assert again.optimization_step == 5
    assert all(torch.equal(*pair) for pair in zip(again.shadow_params, average.shadow_params))
    assert again.get_decay(50) == average.get_decay(50) > 0


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_counters_are_saved_and_restored(api):
    """Steps after a resume are those of a run that was not stopped: bits and counters."""
    net = nets()
    algo = SimpleNamespace(nets=net, ema=ours(api, net, power=0.75))
    for number in range(7):
        move(net, number)
        algo.ema.step(net)
    saved = captured(algo)
    other = nets()
    resumed = SimpleNamespace(nets=other, ema=ours(api, other, power=0.75))
    restore_model(resumed, saved)
    for one in (algo, resumed):
        move(one.nets, 99)
        one.ema.step(one.nets)
    assert resumed.ema.optimization_step == 8
    assert counters(resumed.ema) == counters(algo.ema)
    pairs = zip(resumed.ema.shadow_params, algo.ema.shadow_params)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_a_state_of_diffusers_own_average_resumes_in_ours(api, old_training_utils):
    net = nets()
    algo = SimpleNamespace(nets=net, ema=theirs(api, net, old_training_utils, power=0.75))
    for number in range(3):
        move(net, number)
        algo.ema.step(net if api == "model=" else net.parameters())
    resumed = SimpleNamespace(nets=nets(), ema=ours(api, nets(), power=0.75))
    restore_model(resumed, captured(algo))
    assert counters(resumed.ema) == counters(algo.ema)


@pytest.mark.parametrize("api", ["model=", "parameters="])
@pytest.mark.parametrize("given", ["nets", "parameters"])
def test_one_pass_is_the_same_average(api, given):
    """As in test_averaging.py: the same but for last bits."""
    plain, quick = (SimpleNamespace(nets=nets()) for _ in range(2))
    for model in (plain, quick):
        model.ema = ours(api, model.nets, power=0.75)
    with ExitStack() as undo:
        assert ema.install(quick, undo)
        for number in range(8):
            for model in (plain, quick):
                move(model.nets, number)
                model.ema.step(model.nets if given == "nets" else model.nets.parameters())
        assert counters(quick.ema) == counters(plain.ema)
    close = {"rtol": 1e-6, "atol": 2e-7}
    torch.testing.assert_close(quick.ema.shadow_params, plain.ema.shadow_params, **close)


MANY = {
    "decay": 0.75,
    "min_decay": 0.25,
    "update_after_step": 2,
    "use_ema_warmup": True,
    "inv_gamma": 3.0,
    "power": 0.5,
}


def test_all_settings_are_in_the_state_under_diffusers_names():
    average = ours("parameters=", nets(), foreach=True, model_cls="C", model_config="D", **MANY)
    assert {name: average.state_dict()[name] for name in MANY} == MANY
    assert set(average.state_dict()) == {*MANY, "optimization_step", "shadow_params"}
    assert (average.foreach, average.model_cls, average.model_config) == (True, "C", "D")
    other = ours("parameters=", nets())
    other.load_state_dict({name: MANY[name] for name in MANY})
    assert {name: other.state_dict()[name] for name in MANY} == MANY
    assert other.optimization_step == 0 and [
        *map(torch.equal, other.shadow_params, nets().parameters())
    ]
    bounds = {"min_value": 0.25, "max_value": 0.75, "update_after_step": 2}
    module = ours("model=", nets(), power=0.5, inv_gamma=3.0, **bounds)
    assert {name: module.state_dict()[name] for name in MANY} == MANY
    again = ours("model=", nets())
    again.load_state_dict({**module.state_dict(), "unknown": 1})
    assert (again.min_value, again.max_value, again.power) == (0.25, 0.75, 0.5)
    assert not hasattr(again, "unknown") and not hasattr(again, "use_ema_warmup")
    again.load_state_dict({})
    assert {name: again.state_dict()[name] for name in MANY} == MANY


def test_a_loaded_state_is_a_copy():
    average, other = ours("parameters=", nets()), ours("parameters=", nets())
    other.load_state_dict(average.state_dict())
    other.shadow_params[0].add_(1)
    assert torch.equal(average.shadow_params[0], next(nets().parameters()))


def test_the_decay_of_each_step_is_between_its_bounds():
    average = ours("parameters=", nets(), **{**MANY, "power": 1.0, "inv_gamma": 1.0})
    decays = [average.get_decay(step) for step in range(9)]
    assert decays == pytest.approx([0.0] * 4 + [0.5, 2 / 3, 0.75, 0.75, 0.75])
    late = ours("parameters=", nets(), decay=0.9, min_decay=0.4)
    assert [late.get_decay(step) for step in (1, 2, 3, 99)] == [0.0, 0.4, 0.4, 0.9]
    assert late.get_decay(12) == 12 / 21


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_names_of_older_versions(api):
    average = ours(api, nets(), min_value=0.25, max_value=0.75, device="meta")
    state = average.state_dict()
    assert (state["min_decay"], state["decay"]) == (0.25, 0.75)
    assert {one.device.type for one in average.shadow_params} == {"meta"}
    given_as_module = DDPUtils.averaged_copy(nets(), device=None)
    assert given_as_module.averaged_model is not None


def test_numbers_that_are_not_of_floating_point_keep_their_kind():
    average = DDPUtils.averaged_copy([torch.zeros(2), torch.zeros(2, dtype=torch.int64)])
    average.to(dtype=torch.float64)
    assert [one.dtype for one in average.shadow_params] == [torch.float64, torch.int64]
    average.to("meta")
    assert {one.device.type for one in average.shadow_params} == {"meta"}


def test_the_average_of_a_module_is_no_part_of_it():
    net = nets()
    for api in ("model=", "parameters="):
        average = ours(api, net)
        assert not any(one.requires_grad for one in average.shadow_params)
        for one, other in zip(average.shadow_params, net.parameters()):
            assert one.data_ptr() != other.data_ptr() and torch.equal(one, other)
        assert average.cur_decay_value == (0.0 if api == "model=" else None)


def test_each_averaged_tensor_is_proven_once():
    net = nets()
    names = [
        name
        for name, _ in host_algo.named_state(SimpleNamespace(nets=net, ema=ours("model=", net)))
    ]
    assert len(names) == len(set(names)) == 2 * len(net.state_dict())
    shadows = host_algo.named_state(SimpleNamespace(nets=net, ema=ours("parameters=", net)))
    assert sum("shadow_params" in name for name, _ in shadows) == len(list(net.parameters()))


def test_mistakes_are_named():
    with pytest.raises(WrapError, match="neither model="):
        DDPUtils.averaged_copy(power=0.75)
    with pytest.raises(TypeError, match="pwer"):
        DDPUtils.averaged_copy(model=nets(), pwer=0.75)
    average = DDPUtils.averaged_copy(model=nets())
    larger = nets()
    larger.extra = torch.nn.Linear(2, 2)
    with pytest.raises(WrapError, match="'extra.weight'"):
        average.step(larger)
    with pytest.raises(WrapError, match="other nets"):
        average.shadow_params = [torch.zeros(1)]


def test_no_diffusers_is_needed():
    program = """
import sys
sys.modules["diffusers"] = None
import torch
import robomimic_ddp.api as DDPUtils
net = torch.nn.Linear(2, 2)
DDPUtils.averaged_copy(model=net).step(net)
DDPUtils.averaged_copy(parameters=net.parameters()).step(net.parameters())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
