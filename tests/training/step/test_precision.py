"""Mixed precision around a net's forward, and gradients that overflow."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import DataError, LossError, PlanError
from robomimic_ddp.monitoring import nan_guard, step_hooks
from robomimic_ddp.training import presets
from robomimic_ddp.training.presets import added_by_max, prepare, with_preset
from robomimic_ddp.training.step import backprop, compile, precision
from tests.plans import planned_run
from tests.versions import NEEDS_CPU_FP16


class Net(nn.Module):
    """Notes what it computes in; may fail, or call itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.fails = nn.Linear(4, 4), [], False

    def forward(self, x: torch.Tensor) -> dict:
        if self.fails:
            raise ValueError("planted")
        if x.dim() > 2:
            return self(x[0])
        inside = self.layer(x)
        self.seen.append(inside.dtype)
        return {"out": inside, "parts": [inside, (inside, 1)]}


def computes_in() -> torch.dtype:
    """What a product is computed in outside of any net."""
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize("kind", ["bf16", pytest.param("fp16", marks=NEEDS_CPU_FP16)])
@pytest.mark.parametrize("as_in_torch_2_0", [False, True])
def test_a_net_computes_in_it_and_hands_out_fp32(as_in_torch_2_0, kind, monkeypatch):
    net, register = Net(), nn.Module.register_forward_hook
    if as_in_torch_2_0:  # whose hooks are not called after a forward that failed
        monkeypatch.setattr(precision, "_RUNS_AFTER_FAILURES", False)
        monkeypatch.setattr(
            nn.Module, "register_forward_hook", lambda net, hook: register(net, hook)
        )
    with ExitStack() as undo:
        precision.install([net, without_weights := nn.Identity()], kind, undo)
        assert without_weights(torch.ones(2, dtype=precision.KINDS[kind])).dtype == torch.float32
        out = net(torch.ones(2, 4))
        assert net.seen == [precision.KINDS[kind]]
        assert {out["out"].dtype, out["parts"][0].dtype, out["parts"][1][0].dtype} == {
            torch.float32
        }
        assert net.layer.weight.dtype == torch.float32
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            copied(torch.ones(1, 2, 4))
            assert copied.seen == [precision.KINDS[kind]] * 2
            assert computes_in() == torch.float32, "a forward within a forward left autocast on"
        net.fails = True
        with pytest.raises(ValueError, match="planted"):
            net(torch.ones(2, 4))
        if not as_in_torch_2_0 and not torch.__version__.startswith("2.0."):
            assert computes_in() == torch.float32, "a failed forward left autocast on"
        net.fails = False
        net(torch.ones(2, 4))
        assert computes_in() == torch.float32, "the forward after a failed one left autocast on"
    net(torch.ones(2, 4))
    assert net.seen[-1] == torch.float32


def test_replicas_of_data_parallel_compute_in_it(monkeypatch):
    """They have no parameters, so autocast is given the device that the net is on."""
    seen, autocast = [], torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda device, kind: seen.append(device) or autocast("cpu", kind)
    )
    net = nn.Linear(4, 4, device="meta")
    with ExitStack() as undo:
        precision.install([net], "bf16", undo)
        replica = net._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.ones(4, 4), torch.ones(4)
        assert not list(replica.parameters())
        replica(torch.ones(2, 4))
    assert seen == ["meta"]


def steps(scaler, count=8):
    """Weights after each of `count` steps of one parameter."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    weights = []
    for number in range(count):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        loss = (net(x) * 10).pow(2).mean()
        norm = backprop.update(net, optimizer, loss, scaler=scaler)
        weights.append(net.weight.detach().clone())
        assert scaler is None or math.isfinite(norm) or torch.equal(weights[0], weights[-1])
    return weights


@NEEDS_CPU_FP16
def test_a_step_that_overflows_is_left_out_and_the_scale_found():
    """Scales are powers of two, so that scaling rounds nothing: equal bits."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    assert all(map(torch.equal, steps(scaler), steps(None)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    left_out = steps(scaler)
    assert torch.equal(left_out[0], left_out[1]), "the step was not left out"
    assert not torch.equal(left_out[1], left_out[-1])
    assert 1 < scaler.get_scale() < 2.0**126


@NEEDS_CPU_FP16
@pytest.mark.bad_input
def test_a_step_whose_gradients_are_not_scaled_is_refused(monkeypatch):
    from robomimic.utils.torch_utils import backprop_for_loss

    module = ModuleType("tests.utils.torch_utils")
    module.backprop_for_loss = backprop_for_loss
    monkeypatch.setitem(sys.modules, module.__name__, module)
    algo = Algo([], [])
    algo.nets = nn.ModuleDict({"policy": nn.Linear(4, 4)})
    algo.optimizer = torch.optim.SGD(algo.nets.parameters(), lr=1.0)
    algo.temperature = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=1.0)

    def loss():
        return algo.nets["policy"](torch.ones(3, 4)).pow(2).mean() * 1e-7

    with ExitStack() as undo:
        prepare(algo, Options(precision="fp16"), [algo.nets["policy"]], undo)
        assert module.backprop_for_loss(algo.nets, algo.optimizer, loss()) > 0
        begun = algo.nets["policy"].weight.clone()
        with pytest.raises(PlanError, match="self.optimizer outside of .* fp16 .*precision=bf16"):
            backprop_for_loss(algo.nets, algo.optimizer, loss())
        assert torch.equal(algo.nets["policy"].weight, begun)
        algo.temperature.step()  # trains nothing that computes in fp16
        algo.nets.eval()
        algo.optimizer.step()  # in a rollout
    algo.nets.train()
    algo.optimizer.step()


class Algo:
    """Logs the losses and gradient norms that it is given."""

    def __init__(self, losses: list, norms: list) -> None:
        self.losses, self.norms = iter(losses), iter(norms)

    def process_batch_for_training(self, batch: dict) -> dict:
        return batch

    def log_info(self, info: dict) -> dict:
        return {"Loss": next(self.losses), "Norm": next(self.norms)}


def run_epoch(model, data_loader, epoch, num_steps):
    logs = []
    for _ in range(num_steps):
        model.process_batch_for_training(data_loader)
        logs.append(model.log_info({}))
    return logs


def train(losses, may_overflow, batch=None, norms=None):
    algo = Algo(losses, norms or [1.0] * len(losses))
    with step_hooks.installed(algo, [nan_guard.Guard(None, 1, may_overflow)]):
        return run_epoch(algo, batch or {"actions": torch.zeros(2)}, 1, len(losses))


def test_losses_without_a_sum_are_guarded():
    """IQL logs one for each net."""
    algo, log = Algo([1.0], [1.0]), {"adv": math.nan, "vf/v_loss": 1.0}
    algo.log_info = lambda info: dict(log)
    with step_hooks.installed(algo, [nan_guard.Guard(None, 1)]):
        run_epoch(algo, {"actions": torch.zeros(2)}, 1, 1)
        log["vf/v_loss"] = math.inf
        with pytest.raises(LossError, match="the loss is inf at step 2.*diverged"):
            run_epoch(algo, {"actions": torch.zeros(2)}, 1, 1)


def test_overflows_of_fp16_are_left_out_of_the_log():
    losses = [1.0, math.inf, math.nan, 2.0]
    logs = train(losses, True)
    assert [log.get("Loss") for log in logs] == [1.0, None, None, 2.0]
    assert all(log["Norm"] == 1.0 for log in logs)
    with pytest.raises(LossError, match="the training diverged"):
        train(losses, False)


@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
def test_losses_that_are_no_floats_are_guarded_too(kind):
    assert [log.get("Loss") for log in train([kind(1.0), kind(math.inf)], True)] == [1.0, None]
    with pytest.raises(LossError, match="the loss is nan at step 1"):
        train([kind(math.nan)], False)


def test_training_that_never_comes_back_and_broken_data_still_stop():
    most = nan_guard.MOST_OVERFLOWS
    train([math.nan] * most + [1.0] + [math.nan] * most, True)
    with pytest.raises(LossError):
        train([math.nan] * (most + 1), True)
    with pytest.raises(DataError, match="NaN or infinity in actions"):
        train([math.nan], True, {"actions": torch.tensor([math.nan])})


def test_broken_data_stops_the_training_though_its_file_has_moved(tmp_path):
    dataset = SimpleNamespace(hdf5_path=str(tmp_path / "gone.hdf5"), demos=["demo_0"])
    guard = nan_guard.Guard(SimpleNamespace(dataset=dataset), 1)
    with pytest.raises(DataError, match="the batch has NaN or infinity in actions. Training on it"):
        guard.step({"Loss": math.nan}, {"actions": torch.tensor([math.nan])})


def test_gradients_that_always_overflow_stop_the_training_though_the_loss_is_finite():
    most = nan_guard.MOST_OVERFLOWS
    norms = [math.inf] * most + [1.0] + [math.nan] * most
    assert train([1.0] * len(norms), True, norms=norms)[0] == {"Loss": 1.0}
    with pytest.raises(LossError, match=f"skipped {most} steps in a row, since Norm overflowed"):
        train([1.0] * (most + 1), True, norms=[math.nan] * (most + 1))
    train([1.0] * 30, False, norms=[math.inf] * 30)  # without fp16 a norm is the host's business


def test_without_a_scaler_for_the_cpu_fp16_is_for_gpus(monkeypatch):
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: [device], raising=False)
    assert precision.make_scaler("fp16", "cuda:1") == ["cuda"]
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda: "of GPUs")
    monkeypatch.delattr(torch.amp, "GradScaler")
    assert precision.make_scaler("fp16", "cuda:1") == "of GPUs"
    assert "on GPUs only" in precision.why_not("fp16", "cpu")
    assert precision.why_not("fp16", "cuda:1") is precision.why_not("bf16", "cpu") is None


def settings_of(several=False, gpus=0, **asked):
    """The settings of rank 0, of two or alone."""
    return planned_run(ranks=1 + several, gpus=gpus, **asked).settings


def test_max_fills_in_what_applies_and_was_left_open(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(compile, "why_not", lambda *_: None)
    for gpus, several, precision_is, comm_is in (
        (2, True, "bf16", "bf16"),
        (1, False, "bf16", "none"),
        (0, True, "fp32", "bf16"),
        (0, False, "fp32", "none"),
    ):
        found = with_preset(settings_of(several, gpus, preset="max"), True).options
        assert (found.precision, found.comm) == (precision_is, comm_is)
        assert found.compile == ("true" if gpus else "false")
    chosen = {"comm": "none", "compile": False, "precision": "fp32"}
    for asked in ({"preset": "max", **chosen}, {"preset": "fast"}, {"preset": "safe"}):
        settings = settings_of(True, 2, **asked)
        assert with_preset(settings, True).options == settings.options
    settings = with_preset(settings_of(True, 2, preset="max"), any_parallel_net=False)
    found = settings.options
    assert (found.precision, found.compile, found.comm) == ("fp32", "false", "bf16")
    assert added_by_max(settings) == "preset max adds: comm=bf16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # by emulation
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(compile, "why_not", lambda *_: "planted")
    settings = with_preset(settings_of(gpus=1, preset="max"), True)
    found = settings.options
    assert (found.precision, found.compile) == ("fp32", "false")
    assert added_by_max(settings).startswith("preset max adds: nothing")
    assert added_by_max(with_preset(settings_of(several=True), True)) is None


@pytest.mark.parametrize("preset, expected", [("safe", "no"), ("fast", "no"), ("max", "yes")])
def test_tf32_is_named_and_only_max_adds_products(preset, expected, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(presets, "_device", lambda _: torch.device("cuda:0"))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # as the host
    model = SimpleNamespace(nets=nn.ModuleDict({"net": nn.Linear(2, 2)}))
    with ExitStack() as undo:
        line = prepare(model, Options(preset=preset), [model.nets["net"]], undo).line
        assert f"TF32: convolutions yes, matrix products {expected}" in line
        assert ("as the host has it" in line) is (preset != "max")
        assert "algorithms of convolutions: measured, may differ between runs" in line
        assert torch.backends.cuda.matmul.allow_tf32 is (preset == "max")
    assert not torch.backends.cuda.matmul.allow_tf32
    with monkeypatch.context() as patched, ExitStack() as undo:
        # torch raises where a host has set `torch.backends.fp32_precision`
        patched.setattr(torch, "get_float32_matmul_precision", Mock(side_effect=RuntimeError))
        line = prepare(model, Options(preset=preset), [model.nets["net"]], undo).line
        assert "TF32: as the host has set it" in line
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with ExitStack() as undo:
        assert "TF32" not in prepare(model, Options(preset=preset), [], undo).line
