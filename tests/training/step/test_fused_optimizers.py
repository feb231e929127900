"""Fused optimizers: the host's results, and its options in everything that leaves the optimizer."""

from __future__ import annotations

import copy
import math
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from robomimic_ddp.training.step import backprop, fused_optimizers
from tests.versions import NEEDS_CPU_FP16, NEEDS_OPTIMIZER_HOOKS

STEPS = 25
LEARNING_RATE = 1e-3
KINDS = {
    "AdamW": lambda held: torch.optim.AdamW(held, lr=LEARNING_RATE, weight_decay=0.01),
    "Adam": lambda held: torch.optim.Adam(held, lr=LEARNING_RATE, weight_decay=1e-3),
}


def make(kind):
    torch.manual_seed(0)
    nets = nn.ModuleDict({"policy": nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))})
    return SimpleNamespace(nets=nets, optimizers={"policy": KINDS[kind](nets.parameters())})


def train(model, first, steps=STEPS):
    """Steps number first, first + 1, ...; each has different data."""
    optimizer = model.optimizers["policy"]
    for number in range(first, first + steps):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model.nets["policy"](x).pow(2).mean().backward()
        optimizer.step()


def require_close(ours, theirs):
    """2e-3 learning rates: Adam divides by a gradient's own size, so rounding of a gradient near
    zero may move a parameter by more than rounding.
    """
    for one, other in zip(ours.nets.parameters(), theirs.nets.parameters()):
        assert float((one - other).detach().abs().max()) < 2e-3 * LEARNING_RATE


@NEEDS_OPTIMIZER_HOOKS
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_steps_and_the_hosts_options_outside(kind):
    plain, fused = make(kind), make(kind)
    train(plain, 0, 3)
    train(fused, 0, 3)  # an optimizer that was used, as after the host's own resume
    for state in fused.optimizers["policy"].state.values():
        state["step"] = state["step"].double()  # as torch counts where its default is fp64
    with ExitStack() as undo:
        assert fused_optimizers.install(fused, undo)
        train(plain, 3)
        train(fused, 3)
        require_close(fused, plain)
        inside = fused.optimizers["policy"]
        assert all(entry["fused"] is True for entry in inside.param_groups)
        assert {state["step"].dtype for state in inside.state.values()} == {torch.float32}
        theirs, ours = plain.optimizers["policy"].state_dict(), inside.state_dict()
        assert ours["param_groups"] == theirs["param_groups"] and ours.keys() == theirs.keys()
        assert [state["step"] for state in ours["state"].values()] == [torch.tensor(28.0)] * 4
        assert all(state["step"].device.type == "cpu" for state in ours["state"].values())
        assert all(entry["fused"] is True for entry in inside.param_groups), "export changed it"
        saved = copy.deepcopy(theirs)
        inside.load_state_dict(saved)  # of a host's checkpoint: the flag is put back
        assert all(entry["fused"] is True for entry in inside.param_groups)
        fused.nets.load_state_dict(plain.nets.state_dict())
        train(plain, 60, 2)
        train(fused, 60, 2)
        require_close(fused, plain)
    assert fused.optimizers["policy"].param_groups[0]["fused"] is None
    train(plain, 70, 2)
    train(fused, 70, 2)
    require_close(fused, plain)


@NEEDS_OPTIMIZER_HOOKS
@NEEDS_CPU_FP16
@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_leaves_a_step_out_and_is_not_read_back(kind, monkeypatch):
    """torch's scaler would wait for a GPU before each step, to read whether to take it."""
    model, scaler = make(kind), torch.amp.GradScaler("cpu", init_scale=2.0**126)
    optimizer, finite = model.optimizers["policy"], []
    with ExitStack() as undo:
        assert fused_optimizers.install(model, undo)
        monkeypatch.setattr(scaler, "_maybe_opt_step", None)
        for _ in range(40):
            before = copy.deepcopy(model.nets.state_dict())
            loss = (model.nets["policy"](torch.randn(8, 5)) * 10).pow(2).mean()
            norm = backprop.update(model.nets, optimizer, loss, scaler=scaler)
            finite.append(math.isfinite(norm))
            same = [torch.equal(one, before[name]) for name, one in model.nets.state_dict().items()]
            assert all(same) is not finite[-1] and len(set(same)) == 1
        assert not finite[0] and finite[-1]
        steps = {float(state["step"]) for state in optimizer.state_dict()["state"].values()}
        assert steps == {sum(finite)}, "a step that was left out was counted"
    assert not hasattr(optimizer, "_step_supports_amp_scaling")


@NEEDS_OPTIMIZER_HOOKS
def test_a_group_that_is_added_during_training_is_saved():
    model, added = make("AdamW"), nn.Linear(2, 2)
    optimizer = model.optimizers["policy"]
    with ExitStack() as undo:
        assert fused_optimizers.install(model, undo)
        optimizer.add_param_group({"params": list(added.parameters()), "lr": 1e-2})
        added(torch.ones(1, 2)).sum().backward()
        train(model, 0, 1)
        saved = optimizer.state_dict()
    assert [len(entry["params"]) for entry in saved["param_groups"]] == [4, 2]
    assert [entry["fused"] for entry in saved["param_groups"]] == [None, None]
    optimizer.load_state_dict(saved)
    assert [entry["fused"] for entry in optimizer.param_groups] == [None, None]


@NEEDS_OPTIMIZER_HOOKS
@pytest.mark.parametrize(
    "options, fits",
    [
        ({"capturable": False}, True),
        ({"fused": False}, True),
        ({"fused": True}, False),
        ({"foreach": True}, False),
        ({"capturable": True}, False),
        ({"differentiable": True}, False),
        ({"lr": torch.tensor(0.1)}, False),
    ],
)
def test_what_the_host_has_chosen_stays(options, fits):
    model = make("Adam")
    optimizer = torch.optim.Adam(model.nets.parameters(), **options)
    model.optimizers["policy"], host_option = optimizer, optimizer.param_groups[0]["fused"]
    with ExitStack() as undo:
        assert fused_optimizers.install(model, undo) is fits
        assert optimizer.state_dict()["param_groups"][0]["fused"] is host_option
        assert not optimizer.state[next(model.nets.parameters())]
        optimizer.state_dict()  # of a parameter that was asked for and not yet stepped
    assert optimizer.param_groups[0]["fused"] is host_option


@NEEDS_OPTIMIZER_HOOKS
@pytest.mark.parametrize("options", [{"device": "meta"}, {"dtype": torch.complex64}])
def test_parameters_that_torch_has_no_fused_kernel_for_have_the_hosts(options):
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2, **options))])
    with ExitStack() as undo:
        assert not fused_optimizers.install(SimpleNamespace(optimizer=optimizer), undo)


@NEEDS_OPTIMIZER_HOOKS
def test_hooks_of_the_host_see_its_steps_only():
    model, stepped = make("Adam"), []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer))
    with ExitStack() as undo:
        undo.callback(hook.remove)
        assert fused_optimizers.install(model, undo) and stepped == []
        model.optimizers["policy"].step()
    assert stepped == [model.optimizers["policy"]]


@NEEDS_OPTIMIZER_HOOKS
def test_other_optimizers_stay_the_hosts():
    model = make("Adam")
    model.optimizers["policy"] = torch.optim.SGD(model.nets.parameters(), lr=0.1)
    with ExitStack() as undo:
        assert not fused_optimizers.install(model, undo)
        assert "fused" in model.optimizers["policy"].param_groups[0]
        assert model.optimizers["policy"].param_groups[0]["fused"] is None


def test_only_known_text_is_replaced():
    import functools

    from robomimic.utils.torch_utils import backprop_for_loss

    assert backprop.stands_for(backprop_for_loss)
    assert backprop.stands_for(functools.partial(backprop_for_loss, max_grad_norm=1.0))
    assert not backprop.stands_for(lambda net, optim, loss: 0.0)
    assert not backprop.stands_for(require_close)
    assert not backprop.stands_for(print)

    @functools.wraps(backprop_for_loss)
    def decorated(*args, **kwargs):
        return backprop_for_loss(*args, **kwargs)

    assert not backprop.stands_for(decorated)
    assert not backprop.stands_for(functools.partial(decorated, max_grad_norm=1.0))


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_the_gradient_norm_is_the_hosts(max_grad_norm):
    from robomimic.utils.torch_utils import backprop_for_loss

    results = []
    for function in (backprop_for_loss, backprop.update):
        model = make("AdamW")
        frozen = model.nets["policy"][0].bias.requires_grad_(False)
        before, norms = frozen.clone(), []
        for number in range(STEPS):
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(number))
            loss = model.nets["policy"](x).pow(2).mean()
            optimizer = model.optimizers["policy"]
            norms.append(function(model.nets, optimizer, loss, max_grad_norm=max_grad_norm))
            assert type(norms[-1]) is float
        assert torch.equal(before, frozen)
        results.append((norms, model))
    (theirs, plain), (ours, model) = results
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert max_grad_norm is None or max(ours) < max_grad_norm**2 * 1.001
    require_close(model, plain)


@NEEDS_OPTIMIZER_HOOKS
@pytest.mark.parametrize(
    "shape, fits", [((8, 3, 1, 1), False), ((8, 3, 2, 2), True), ((8, 1), True)]
)
def test_gradients_that_an_older_torch_refuses_on_a_gpu_have_the_hosts_kernel(
    shape, fits, monkeypatch
):
    """cuDNN's gradients of convolutions of images may have another stride where a size is 1."""

    class OnGPU(nn.Parameter):
        is_cuda = True

    optimizer = torch.optim.Adam([OnGPU(torch.zeros(shape))])
    with monkeypatch.context() as patch:
        patch.setattr(fused_optimizers, "_CHECKS_ALL_STRIDES", True)
        assert fused_optimizers._can_be_fused(optimizer) is fits
    expected = fits or torch.__version__ >= (2, 5)
    assert fused_optimizers._can_be_fused(optimizer) is expected
