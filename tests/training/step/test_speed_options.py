"""Activation checkpointing and compilation on one process: same numbers, and nothing
of them in what is saved, copied or run without gradients.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import parallel as wrap
from robomimic_ddp.errors import PlanError
from robomimic_ddp.training.presets import prepare
from robomimic_ddp.training.step import (
    activation_checkpointing,
    compile,
    module_call,
)
from tests.versions import NEEDS_CALL_PLACE


class Camera(nn.Module):
    """A small encoder that draws random numbers, as SpatialSoftmax does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x) if self.training else 0
        return self.layers(x + 0.1 * noise).flatten(1).mean(1, keepdim=True)


class Encoder(nn.Module):
    """Two cameras in a dictionary, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.cameras = nn.ModuleDict({"left": Camera(), "right": Camera()})
        self.state = nn.Linear(3, 2)

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        seen = [camera(image) for camera in self.cameras.values()]
        return torch.cat([*seen, self.state(state)], 1)


def make_model():
    torch.manual_seed(0)
    nets = nn.ModuleDict({"policy": nn.ModuleDict({"obs_encoder": Encoder()})})
    optimizer = torch.optim.AdamW(nets.parameters(), lr=0.01)
    shadows = [one.detach().clone() for one in nets.parameters()]
    return SimpleNamespace(
        nets=nets,
        optimizers={"policy": optimizer},
        ema=SimpleNamespace(shadow_params=shadows),
        ema_nets=copy.deepcopy(nets).requires_grad_(False),
    )


def encoder_of(model):
    return model.nets["policy"]["obs_encoder"]


def train(model, steps=4):
    """Losses; draws from the global stream."""
    optimizer, losses = model.optimizers["policy"], []
    torch.manual_seed(1)
    for _ in range(steps):
        out = encoder_of(model)(torch.randn(2, 3, 12, 12), torch.randn(2, 3))
        loss = (out - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model):
    return torch.cat([one.detach().flatten() for one in model.nets.state_dict().values()])


@pytest.fixture
def plain():
    model = make_model()
    return train(model), weights(model)


def bytes_kept(model):
    """Of what a forward keeps for its backward, parameters apart; each storage once."""
    own = {one.untyped_storage().data_ptr() for one in model.nets.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = encoder_of(model)(torch.randn(4, 3, 32, 32), torch.randn(4, 3))
    del out
    return sum(kept.values())


@NEEDS_CALL_PLACE
def test_activation_checkpointing_keeps_bits_and_drops_memory(plain):
    model = make_model()
    before = bytes_kept(model)
    with ExitStack() as undo:
        encoder = encoder_of(model)
        assert activation_checkpointing.install([encoder, nn.Linear(2, 2)], undo) == [encoder]
        kept = bytes_kept(model)
        assert kept < before / 3, (kept, before)
        # its random numbers come again, and the streams are where they were
        assert train(model) == plain[0]
        assert torch.equal(weights(model), plain[1])
        copied = pickle.loads(pickle.dumps(copy.deepcopy(encoder)))
        assert not any("_compiled_call_impl" in vars(one) for one in copied.modules())
    assert bytes_kept(model) == before


@NEEDS_CALL_PLACE
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_take_a_checkpointed_batch_once(momentum):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, momentum=momentum)
    nets = [nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 2, 3))]
    nets.append(copy.deepcopy(nets[0]))
    with ExitStack() as undo:
        assert activation_checkpointing.install(nets[1:], undo) == nets[1:]
        for _ in range(3):
            image = torch.randn(2, 3, 8, 8)
            for net in nets:
                loss = net(image).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
    plain, ours = (net.state_dict() for net in nets)
    assert plain["1.num_batches_tracked"] == 3 and ours.keys() == plain.keys()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
    pairs = zip(*(net.parameters() for net in nets))
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
    assert nets[1][1].momentum == momentum


@NEEDS_CALL_PLACE
def test_only_cameras_compute_again():
    encoder, calls = Encoder(), Counter()
    for name, module in encoder.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    camera = Camera()
    with ExitStack() as undo:
        installed = activation_checkpointing.install([encoder, camera, nn.Linear(2, 2)], undo)
        assert installed == [encoder, camera]
        encoder(torch.randn(2, 3, 12, 12), torch.randn(2, 3)).sum().backward()
    assert calls["cameras.left.layers.0"] == calls["cameras.right.layers.0"] == 2
    assert calls["state"] == 1


class Counting:
    """A compiler that counts graphs, and computes eagerly."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@NEEDS_CALL_PLACE
def test_compilation_is_bounded_and_stays_out_of_everything_else(plain):
    model, counting = make_model(), Counting()
    encoder = encoder_of(model)
    keys = list(model.nets.state_dict())
    with ExitStack() as undo, mock.patch.object(compile, "BACKEND", counting):
        assert compile.install([encoder, nn.Identity()], "true", [], undo) == 1
        assert train(model) == plain[0] and torch.equal(weights(model), plain[1])
        graphs = counting.graphs
        assert graphs > 0
        train(model)
        encoder.eval()
        encoder(torch.randn(5, 3, 12, 12), torch.randn(5, 3))
        encoder.train()
        with torch.no_grad():
            encoder(torch.randn(7, 3, 12, 12), torch.randn(7, 3))
        assert counting.graphs == graphs, "a validation batch was compiled"
        assert list(model.nets.state_dict()) == keys
        copied = copy.deepcopy(encoder)
        copied(torch.randn(2, 3, 12, 12), torch.randn(2, 3))
        assert counting.graphs == graphs, "a copy was compiled"
        pickle.dumps(encoder)
    before = counting.graphs
    encoder(torch.randn(9, 3, 12, 12), torch.randn(9, 3))
    assert counting.graphs == before and encoder._compiled_call_impl is None


def fails(graph, inputs):
    raise RuntimeError("planted")


@NEEDS_CALL_PLACE
@pytest.mark.bad_input
def test_a_compiler_that_fails_or_is_missing_is_one_clear_error(monkeypatch):
    model = make_model()
    small = Options(compile="true", preset="safe", kwargs={"bucket_cap_mb": 0.5})
    parallel = wrap.parallelise(encoder_of(make_model()), "ddp")
    with pytest.raises(PlanError, match=r"of 1 MiB at least \(ddp.kwargs.bucket_cap_mb\)"):
        prepare(make_model(), small, [parallel], ExitStack())
    with ExitStack() as undo, mock.patch.object(compile, "BACKEND", fails):
        compile.install([encoder_of(model)], "true", [], undo)
        why = r"compiler failed on Encoder \(RuntimeError: planted\).*ddp.compile=false"
        with pytest.raises(PlanError, match=why):
            train(model, 1)
    options = Options(compile="true", preset="safe")
    with torch._inductor.config.patch({"cpp.cxx": ("none",)}), pytest.raises(PlanError) as caught:
        torch._dynamo.reset()  # another test may have compiled
        prepare(make_model(), options, [encoder_of(model)], ExitStack())
    assert "ddp.compile=true is not possible" in str(caught.value)
    assert "needs a C++ compiler" in str(caught.value)


@NEEDS_CALL_PLACE
@pytest.mark.bad_input
def test_a_compiler_without_pythons_headers_is_said_before_training(monkeypatch):
    error = (
        "CppCompileError: C++ compile error\n\nOutput:\na.h:5: fatal error: Python.h: No such file"
    )
    monkeypatch.setattr(torch, "compile", lambda function: mock.Mock(side_effect=ValueError(error)))
    missing = compile.why_not("cpu", None)
    assert "(a.h:5: fatal error: Python.h: No such file)" in missing and "python3-dev" in missing


OPTIONS = [{"compile": "true"}, {"activation_checkpointing": True}]


@pytest.mark.bad_input
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_torch_that_is_too_old_is_one_clear_error(options, monkeypatch):
    monkeypatch.setattr(module_call, "can_be_replaced", lambda: False)
    monkeypatch.setattr(compile, "OLDEST", (99, 0))
    hook = "register_state_dict_post_hook"  # without it there is no fused optimizer
    monkeypatch.delattr(torch.optim.Optimizer, hook, raising=False)
    model = make_model()
    with pytest.raises(PlanError, match="too old for it.*Leave the option at its default"):
        prepare(model, Options(preset="safe", **options), [encoder_of(model)], ExitStack())
    with ExitStack() as undo:  # what nobody asked for by name is left out
        line = prepare(model, Options(), [encoder_of(model)], undo).line
    assert "preset: fast" in line and "fused optimizer" not in line


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options",
    [
        *OPTIONS,
        {"kwargs": {"static_graph": True}},
        {"kwargs": {wrap.BUFFERS[0]: True}},
    ],
    ids=str,
)
def test_a_host_without_parallel_nets_is_refused(options):
    with pytest.raises(PlanError, match="for nets that are made parallel one by one"):
        prepare(make_model(), Options(**options), [], ExitStack())


@NEEDS_CALL_PLACE
def test_the_plan_says_what_was_done():
    model = make_model()
    options = {"preset": "safe", "activation_checkpointing": True}
    with ExitStack() as undo, mock.patch.object(compile, "BACKEND", "eager"):
        nets = [encoder_of(model)]
        line = prepare(model, Options(compile="true", **options), nets, undo).line
    for words in (
        "activation checkpointing: 1 net(s) with image encoders",
        "compiled (true): training forward of 0 net(s), not those that are checkpointed",
    ):
        assert words in line
    low_dim = SimpleNamespace(nets=nn.ModuleDict({"a": nn.Linear(2, 2)}))
    with ExitStack() as undo:
        line = prepare(low_dim, Options(**options), [low_dim.nets["a"]], undo).line
    assert "activation checkpointing: none, since no net here has image layers" in line
