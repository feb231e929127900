"""The averaged copy in one pass: both diffusers APIs, key layouts; beside diffusers' own step.

Tolerance 1e-6 relative, 2e-7 absolute, the last bits of numbers around 1: each step rounds each
number in another place, and earlier roundings fade with the average.
"""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp.errors import WrapError
from robomimic_ddp.training.step import ema as averaging
from robomimic_ddp.training.step.ema_model import averaged_copy
from tests.averages import build, of_host

STEPS = 25
CLOSE = {"rtol": 1e-6, "atol": 2e-7}


def make(old_api, module_key):
    """Nets with a frozen parameter and a buffer, averaged by either API."""
    torch.manual_seed(0)
    nets = build("single", module_key)
    next(nets.parameters()).requires_grad_(False)
    model = SimpleNamespace(nets=nets)
    model.ema = of_host(nets, old_api)
    if old_api is None:
        model.ema_nets = copy.deepcopy(nets).requires_grad_(False)
    return model


def step(model, seed):
    """New numbers for every parameter and buffer, then the host's calls."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.nets.state_dict().values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) / 10)
    if hasattr(model, "ema_nets"):
        model.ema.step(model.nets.parameters())
        model.ema.copy_to(model.ema_nets.parameters())
    else:
        model.ema.step(model.nets)


def state(model):
    """(averaged parameters and buffers, counters)."""
    ema = vars(model.ema)
    averaged = getattr(model, "ema_nets", None)
    names = ("optimization_step", "decay", "cur_decay_value")
    counters = {name: ema[name] for name in names if name in ema}
    return (averaged or ema["averaged_model"]).state_dict(), counters


@pytest.mark.parametrize("api", ["model=", "parameters="])
@pytest.mark.parametrize("module_key", [False, True])
def test_as_diffusers_does_it(api, module_key, old_training_utils):
    old_api = old_training_utils if api == "model=" else None
    plain, quick = make(old_api, module_key), make(old_api, module_key)
    attributes = set(vars(quick.ema))
    with ExitStack() as undo:
        assert averaging.install(quick, undo)
        for number in range(STEPS):
            step(plain, number)
            step(quick, number)
            (theirs, their_counters), (ours, our_counters) = state(plain), state(quick)
            assert our_counters == their_counters
            assert list(ours) == list(theirs)
            # diffusers 0.11 averages in the nets' layout; buffers of the current API stay.
            torch.testing.assert_close(ours, theirs, **CLOSE)
        assert our_counters["optimization_step"] == STEPS
    assert set(vars(quick.ema)) == attributes
    step(plain, STEPS)  # the host's own step continues from this state
    step(quick, STEPS)
    torch.testing.assert_close(state(quick)[0], state(plain)[0], **CLOSE)


def test_the_net_that_acts_holds_the_averages_and_parts_again():
    model = make(None, False)
    acting = list(model.ema_nets.parameters())
    with ExitStack() as undo:
        averaging.install(model, undo)
        step(model, 1)
        for one, shadow in zip(acting, model.ema.shadow_params):
            assert one.data_ptr() == shadow.data_ptr()
        other = copy.deepcopy(model.ema_nets)  # another receiver gets a copy, as ever
        step(model, 2)
        model.ema.copy_to(other.parameters())
        torch.testing.assert_close(dict(other.state_dict()), dict(model.ema_nets.state_dict()))
    for one, shadow in zip(acting, model.ema.shadow_params):
        assert torch.equal(one, shadow) and one.data_ptr() != shadow.data_ptr()


def test_averages_that_differ_from_the_acting_net_are_not_shared():
    model = make(None, False)
    with torch.no_grad():
        model.ema.shadow_params[0].add_(1)
    with ExitStack() as undo:
        averaging.install(model, undo)
        pairs = zip(model.ema_nets.parameters(), model.ema.shadow_params)
        assert all(one.data_ptr() != shadow.data_ptr() for one, shadow in pairs)


def test_a_class_of_the_hosts_own_is_left_alone():
    class EMAModel:
        shadow_params, optimization_step, cur_decay_value = [], 0, None

        def step(self, parameters): ...

        def copy_to(self, parameters): ...

    model = SimpleNamespace(ema=EMAModel())
    vars(model.ema).update(shadow_params=[], optimization_step=0, cur_decay_value=None)
    with ExitStack() as undo:
        assert not averaging.install(model, undo)
        assert not averaging.install(SimpleNamespace(ema=None), undo)
    assert "diffusers_old.training_utils" not in sys.modules


def test_an_average_that_was_changed_already_is_left_alone():
    model = make(None, False)
    with ExitStack() as undo:
        assert averaging.install(model, undo)
        assert not averaging.install(model, undo)
    model.ema.copy_to = model.ema.copy_to
    with ExitStack() as undo:
        assert not averaging.install(model, undo)


@pytest.mark.parametrize("api", ["model=", "parameters="])
def test_tensors_of_another_kind_are_averaged_by_the_hosts_own_step(api):
    plain, quick = (SimpleNamespace(nets=build("single", False)) for _ in range(2))
    for model in (plain, quick):
        given = (
            {"model": model.nets} if api == "model=" else {"parameters": model.nets.parameters()}
        )
        model.ema = averaged_copy(**given, power=0.75)
        model.nets.to(torch.float64)
    with ExitStack() as undo:
        assert averaging.install(quick, undo)
        for _ in range(3):
            for model in (plain, quick):
                for parameter in model.nets.parameters():
                    parameter.data.add_(0.5)
                model.ema.step(model.nets)
    assert quick.ema.optimization_step == plain.ema.optimization_step == 3
    assert {one.dtype for one in quick.ema.shadow_params} == {torch.float32}
    torch.testing.assert_close(quick.ema.shadow_params, plain.ema.shadow_params, rtol=0, atol=0)


def test_nets_that_the_average_lacks_are_the_hosts_to_refuse():
    model = SimpleNamespace(nets=build("single", False))
    model.ema = averaged_copy(model=model.nets)
    model.nets["extra"] = torch.nn.Linear(2, 2)
    with ExitStack() as undo:
        averaging.install(model, undo)
        with pytest.raises(WrapError, match="extra.weight"):
            model.ema.step(model.nets)
    del model.nets["extra"]
    model.nets.register_buffer("new", torch.zeros(2))
    with ExitStack() as undo:
        averaging.install(model, undo)
        with pytest.raises(KeyError, match="new"):
            model.ema.step(model.nets)


def test_without_a_net_that_acts_nothing_is_shared():
    model = make(None, False)
    before, model.ema_nets = model.ema.shadow_params[0], None
    with ExitStack() as undo:
        assert averaging.install(model, undo)
        assert model.ema.shadow_params[0] is before
    model = make(None, False)
    model.ema_nets = torch.nn.Linear(3, 3)
    pointers = [one.data_ptr() for one in model.ema_nets.parameters()]
    with ExitStack() as undo:
        assert averaging.install(model, undo)
        assert pointers == [one.data_ptr() for one in model.ema_nets.parameters()]
