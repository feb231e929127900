"""Our averaged copy has the bits and counters of either EMAModel of diffusers and the names of
both, and needs no diffusers. In one pass its numbers are the same up to the last bits.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack

import pytest
import torch

import robomimic_ddp.api as DDPUtils
from robomimic_ddp.checkpoint import restore_model
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.errors import WrapError
from robomimic_ddp.training.step import ema
from tests.averages import build, diffusers_average
from tests.runs import captured

APIS = ["model=", "parameters="]
MANY = {
    "decay": 0.5,
    "min_decay": 0.25,
    "update_after_step": 2,
    "use_ema_warmup": True,
    "inv_gamma": 3.0,
    "power": 0.5,
}
BOUNDS = {
    "min_value": 0.25,
    "max_value": 0.5,
    "update_after_step": 2,
    "inv_gamma": 3.0,
    "power": 0.5,
}
"""The same bounds by their older names: all are reached within 20 steps."""
COUNTERS = ("optimization_step", "decay", "cur_decay_value", "min_value", "max_value", "min_decay")
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-6, "atol": 2e-7}
"""The last bits of numbers around 1: earlier roundings fade with the average."""


class Algo:
    """A host's algorithm: its nets and their average, ours; `acting`: nets that act with it."""

    def __init__(self, api, acting=False, module_key=False, **settings):
        self.nets = nets(module_key)
        self.ema = ours(api, self.nets, **settings)
        if acting:
            self.ema_nets = copy.deepcopy(self.nets).requires_grad_(False)

    def step(self, seed):
        move(self.nets, seed)
        self.ema.step(self.nets)


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


def settings_of(average):
    """Its settings and counters, which differ from tensors and modules."""
    plain = (bool, int, float, str, type(None))
    values = {name: value for name, value in vars(average).items() if isinstance(value, plain)}
    values.pop("temp_stored_params", None)
    return values


def averages(average):
    """Its tensors; of a module by name, with buffers."""
    module = vars(average).get("averaged_model")
    return average.shadow_params if module is None else module.state_dict()


def pointers(tensors):
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize(
    "api, module_key, settings",
    [
        ("model=", False, {}),
        ("model=", True, BOUNDS),
        ("parameters=", False, {"power": 0.75}),
        ("parameters=", False, {"use_ema_warmup": True}),
        ("parameters=", True, MANY),
    ],
    ids=["nets", "nets with bounds", "parameters", "its warm-up", "parameters with bounds"],
)
def test_the_average_is_that_of_diffusers(api, module_key, settings, one_pass, old_training_utils):
    algo = Algo(api, module_key=module_key, **settings)
    expected = theirs(api, algo.nets, old_training_utils, **settings)
    attributes = set(vars(algo.ema))
    assert settings_of(algo.ema).items() >= settings_of(expected).items()
    with ExitStack() as undo:
        if one_pass:
            assert ema.update_in_one_pass(algo, undo)
        for number in range(20):
            if number == 15:
                undo.close()  # the host's arithmetic continues from this state
            move(algo.nets, number)
            expected.step(algo.nets if api == "model=" else algo.nets.parameters())
            algo.ema.step(algo.nets if api == "model=" else algo.nets.parameters())
            assert counters(algo.ema) == counters(expected)
            found, wanted = averages(algo.ema), averages(expected)
            torch.testing.assert_close(found, wanted, **(CLOSE if one_pass else EXACT))
            assert api == "parameters=" or list(found) == list(wanted)
    assert set(vars(algo.ema)) == attributes


def test_the_net_that_acts_holds_the_averages_and_parts_again():
    algo = Algo("parameters=", acting=True)
    with ExitStack() as undo:
        assert ema.update_in_one_pass(algo, undo)
        algo.step(1)
        assert pointers(algo.ema_nets.parameters()) == pointers(algo.ema.shadow_params)
        other = copy.deepcopy(algo.ema_nets)  # another receiver gets a copy, as ever
        algo.step(2)
        algo.ema.copy_to(algo.ema_nets.parameters())
        algo.ema.copy_to(other.parameters())
        torch.testing.assert_close(other.state_dict(), algo.ema_nets.state_dict(), **EXACT)
    pairs = zip(algo.ema_nets.parameters(), algo.ema.shadow_params)
    assert all(torch.equal(*pair) and len({*pointers(pair)}) == 2 for pair in pairs)


@pytest.mark.parametrize("acting", ["other values", "another dtype", "other nets", "none"])
def test_memory_is_shared_with_a_net_that_holds_the_averages_only(acting):
    algo = Algo("parameters=", acting=True)
    if acting == "other values":
        algo.ema.shadow_params[0].add_(1)
    elif acting == "another dtype":
        algo.ema_nets.double()
    else:
        algo.ema_nets = torch.nn.Linear(3, 3) if acting == "other nets" else None
    before = pointers(algo.ema.shadow_params)
    with ExitStack() as undo:
        assert ema.update_in_one_pass(algo, undo)
        assert pointers(algo.ema.shadow_params) == before
        own = pointers(algo.ema_nets.parameters()) if algo.ema_nets is not None else []
        assert not set(own) & set(before)


def test_an_average_of_the_hosts_own_is_left_alone():
    algo = Algo("parameters=")
    for average in (theirs("parameters=", algo.nets, None), None):
        algo.ema = average
        before = dict(vars(average)) if average else {}
        with ExitStack() as undo:
            assert not ema.update_in_one_pass(algo, undo)
            assert not average or vars(average) == before


def test_an_algorithm_without_an_average_is_left_alone():
    with ExitStack() as undo:
        assert not ema.update_in_one_pass(object(), undo)


@pytest.mark.parametrize("api", APIS)
def test_tensors_of_another_kind_are_averaged_in_the_averages_kind(api, old_training_utils):
    plain, quick, diffusers = (Algo(api, power=0.75) for _ in range(3))
    diffusers.ema = theirs(api, diffusers.nets, old_training_utils, power=0.75)
    with ExitStack() as undo:
        ema.update_in_one_pass(quick, undo)
        for algo in (plain, quick, diffusers):
            algo.nets.to(torch.float64)
            for number in range(3):
                move(algo.nets, number)
                algo.ema.step(algo.nets if api == "model=" else algo.nets.parameters())
    assert {average.dtype for average in quick.ema.shadow_params} == {torch.float32}
    torch.testing.assert_close(quick.ema.shadow_params, plain.ema.shadow_params, **CLOSE)
    torch.testing.assert_close(averages(plain.ema), averages(diffusers.ema), **EXACT)


def test_a_host_may_give_its_average_a_module():
    algo = Algo("parameters=")
    algo.ema.averaged_model = copy.deepcopy(algo.nets)
    algo.step(1)
    algo.ema.copy_to(algo.ema.averaged_model.parameters())
    pairs = zip(algo.ema.averaged_model.parameters(), algo.ema.shadow_params)
    assert all(torch.equal(*pair) for pair in pairs)
    named = dict(host_algo.named_state(algo))
    assert {name.partition(".")[0] for name in named} == {"nets", "averaged_model", "ema"}


@pytest.mark.parametrize("api", APIS)
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
    torch.testing.assert_close(net.state_dict(), before, **EXACT)
    with pytest.raises(RuntimeError, match="without a store"):
        average.restore(net.parameters())
    average.shadow_params = [torch.zeros_like(one) for one in net.parameters()]
    assert all(not one.any() for one in average.shadow_params)
    average.to(dtype=torch.float64)
    assert {one.dtype for one in average.shadow_params} == {torch.float64}
    average.to("meta")
    assert {one.device.type for one in average.shadow_params} == {"meta"}


def test_whole_numbers_stay_whole_numbers():
    average = DDPUtils.averaged_copy([torch.ones(2), torch.ones(2, dtype=torch.int64)], 0.5)
    average.to(dtype=torch.float64)
    assert [tensor.dtype for tensor in average.shadow_params] == [torch.float64, torch.int64]
    assert average.decay == 0.5


def test_a_module_exists_where_nets_alone_were_given():
    averaged = DDPUtils.averaged_copy(model=nets()).averaged_model
    assert averaged.training is False
    assert not any(parameter.requires_grad for parameter in averaged.parameters())
    net = nets()
    of_parameters = DDPUtils.averaged_copy(parameters=net.parameters())
    of_both = DDPUtils.averaged_copy(model=net, parameters=net.parameters())
    assert not hasattr(of_parameters, "averaged_model") and not hasattr(of_both, "averaged_model")


@pytest.mark.parametrize(("api", "settings"), [("parameters=", MANY), ("model=", BOUNDS)])
def test_state_dict_goes_to_diffusers_and_comes_back(api, settings):
    from diffusers.training_utils import EMAModel

    algo = Algo(api, **settings)
    for number in range(5):
        algo.step(number)
    installed = EMAModel(parameters=algo.nets.parameters())
    installed.load_state_dict(algo.ema.state_dict())
    assert installed.optimization_step == 5
    assert {name: getattr(installed, name) for name in MANY} == MANY
    again, state = ours(api, nets()), installed.state_dict()
    again.load_state_dict({**state, "unknown": 1})
    assert again.optimization_step == 5 and not hasattr(again, "unknown")
    assert all(map(torch.equal, again.shadow_params, algo.ema.shadow_params))
    assert {name: again.state_dict()[name] for name in MANY} == MANY
    again.shadow_params[0].add_(1)
    assert torch.equal(installed.shadow_params[0], algo.ema.shadow_params[0]), "loaded is a copy"


def test_an_incomplete_state_changes_what_it_has():
    average = DDPUtils.averaged_copy(parameters=nets().parameters(), **MANY)
    before = copy.deepcopy(average.state_dict())
    assert DDPUtils.averaged_copy(parameters=[]).state_dict()["use_ema_warmup"] is False
    average.load_state_dict({"optimization_step": 7})
    after = average.state_dict()
    torch.testing.assert_close(after, {**before, "optimization_step": 7}, **EXACT)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_counters_are_saved_and_restored(api, one_pass):
    """Steps after a resume are those of a run that was not stopped: bits and counters."""
    algo, resumed = Algo(api, power=0.75), Algo(api, power=0.75)
    with ExitStack() as undo:
        for one in (algo, resumed) if one_pass else ():
            ema.update_in_one_pass(one, undo)
        for number in range(7):
            algo.step(number)
        restore_model(resumed, captured(algo))
        for one in (algo, resumed):
            one.step(99)
    assert resumed.ema.optimization_step == 8
    assert counters(resumed.ema) == counters(algo.ema)
    assert all(map(torch.equal, resumed.ema.shadow_params, algo.ema.shadow_params))


@pytest.mark.parametrize("api", APIS)
def test_a_state_of_diffusers_own_average_resumes_in_ours(api, old_training_utils):
    algo, resumed = Algo(api), Algo(api, power=0.75)
    algo.ema = theirs(api, algo.nets, old_training_utils, power=0.75)
    for number in range(3):
        move(algo.nets, number)
        algo.ema.step(algo.nets if api == "model=" else algo.nets.parameters())
    restore_model(resumed, captured(algo))
    assert counters(resumed.ema) == counters(algo.ema)


@pytest.mark.parametrize("api", APIS)
def test_names_of_older_versions(api):
    average = ours(api, nets(), min_value=0.25, max_value=0.75, device="meta")
    state = average.state_dict()
    assert (state["min_decay"], state["decay"]) == (0.25, 0.75)
    assert {one.device.type for one in average.shadow_params} == {"meta"}
    given_as_module = DDPUtils.averaged_copy(nets(), device=None)
    assert given_as_module.averaged_model is not None


def test_each_averaged_tensor_is_proven_once():
    algo = Algo("model=")
    names = [name for name, _ in host_algo.named_state(algo)]
    assert len(names) == len(set(names)) == 2 * len(algo.nets.state_dict())
    algo = Algo("parameters=")
    shadows = [name for name, _ in host_algo.named_state(algo) if "shadow_params" in name]
    assert len(shadows) == len(list(algo.nets.parameters()))


@pytest.mark.parametrize("one_pass", [False, True])
def test_mistakes_are_named(one_pass):
    with pytest.raises(TypeError, match="'parameters'"):
        DDPUtils.averaged_copy(power=0.75)
    with pytest.raises(TypeError, match="pwer"):
        DDPUtils.averaged_copy(model=nets(), pwer=0.75)
    algo, larger = Algo("model="), nets()
    larger.extra = torch.nn.Linear(2, 2)
    with ExitStack() as undo:
        if one_pass:
            ema.update_in_one_pass(algo, undo)
        with pytest.raises(WrapError, match="'extra.weight'"):
            algo.ema.step(larger)
        with pytest.raises(WrapError, match="those of the same nets"):
            algo.ema.shadow_params = [torch.zeros(1)]
