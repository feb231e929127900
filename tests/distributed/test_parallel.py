"""A parallel net stays what it was: class, names, methods; eval bypasses; copies are plain."""

from __future__ import annotations

import copy
import io
from unittest import mock

import pytest
import torch
from torch import nn

from robomimic_ddp.distributed.gradients import module_key, parallel
from robomimic_ddp.errors import WrapError


class Net(nn.Module):
    """A net with a buffer and a method beside forward, as robomimic's encoders have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.layer(x) * self.scale

    def output_shape(self):
        return [3]


def test_class_names_methods_and_repr_stay():
    net, plain = Net(), Net()
    wrapped = parallel.parallelise(net, "dp")
    assert wrapped is net and isinstance(wrapped, Net) and wrapped.output_shape() == [3]
    assert repr(wrapped) == repr(plain)
    for names in ("named_parameters", "named_buffers", "named_modules"):
        assert [n for n, _ in getattr(wrapped, names)()] == [n for n, _ in getattr(plain, names)()]
    assert list(wrapped.state_dict()) == list(plain.state_dict())


def test_a_net_on_the_cpu_stays_there_beside_a_gpu(monkeypatch):
    """As with mode=dp and train.cuda=false: DataParallel would take it to a GPU, or refuse it."""
    monkeypatch.setattr(parallel, "DataParallel", mock.Mock(side_effect=RuntimeError("on cuda:0")))
    net, plain = parallel.parallelise(Net(), "dp"), Net()
    plain.load_state_dict(net.state_dict())
    x = torch.ones(1, 2)
    assert torch.equal(net(x), plain(x))


def test_module_key_has_the_names_of_data_parallel():
    held = module_key.ModuleKey(parallel.parallelise(Net(), "dp"))
    reference = nn.DataParallel(Net())
    assert list(held.state_dict()) == list(reference.state_dict())
    assert [n for n, _ in held.named_parameters()] == [n for n, _ in reference.named_parameters()]
    assert held.module.output_shape() == [3]


def test_the_parallel_object_is_built_at_the_first_training_forward_on_the_same_parameters():
    net = parallel.parallelise(Net(), "dp")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.eval()
    net(torch.ones(1, 2))
    net.train()
    with torch.no_grad():
        net(torch.ones(1, 2))
    state = parallel.state_of(net)
    assert state.parallel is None and state.training_forwards == 0
    net.float().to("cpu")
    before = net.layer.weight.detach().clone()
    net(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    assert parallel.state_of(net).parallel.module is net
    assert not torch.equal(before, net.layer.weight)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_net_without_trainable_parameters_is_never_given_to_ddp(freeze):
    net = Net().requires_grad_(False) if freeze else nn.Sequential(nn.ReLU())
    wrapped = parallel.parallelise(net, "ddp")  # without a process group DDP could not be built
    parallel.state_of(wrapped).build(wrapped)
    assert wrapped.train()(torch.ones(1, 2)) is not None
    assert parallel.state_of(wrapped).parallel is None


def test_copies_and_pickles_are_plain_local_nets():
    holder = nn.ModuleDict({"obs_encoder": parallel.parallelise(Net(), "dp")})
    holder["obs_encoder"](torch.ones(1, 2)).sum().backward()
    for copied in (copy.deepcopy(holder), copy.copy(holder["obs_encoder"])):
        assert not any(parallel.is_parallel(module) for module in copied.modules())
    assert parallel.state_of(holder["obs_encoder"]).parallel is not None
    file = io.BytesIO()
    torch.save(holder, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded["obs_encoder"]) is Net
    assert torch.equal(loaded["obs_encoder"].layer.weight, holder["obs_encoder"].layer.weight)


@pytest.mark.parametrize(
    "build",
    [lambda: parallel.parallelise(Net(), "dp"), lambda: nn.Sequential(nn.DataParallel(Net()))],
)
def test_parallel_inside_parallel_is_refused(build):
    with pytest.raises(WrapError, match="already"):
        parallel.parallelise(build(), "ddp")


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("saved_with_key", [True, False])
def test_checkpoints_load_in_either_key_layout(has_key, saved_with_key):
    source = Net()
    saved = nn.ModuleDict(
        {"policy": nn.ModuleDict({"net": nn.DataParallel(source) if saved_with_key else source})}
    )
    net = module_key.accept_any_layout(parallel.parallelise(Net(), "dp"))
    if has_key:
        net = module_key.accept_any_layout(module_key.ModuleKey(net))
    target = nn.ModuleDict({"policy": nn.ModuleDict({"net": net})})
    state = saved.state_dict()
    kept = dict(state)
    target.load_state_dict(state)
    assert dict(state).keys() == kept.keys()
    for ours, theirs in zip(target.parameters(), source.parameters()):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_of_another_net_is_still_refused():
    net = module_key.accept_any_layout(parallel.parallelise(Net(), "dp"))
    with pytest.raises(RuntimeError, match="layer.weight"):
        net.load_state_dict({"module.other.weight": torch.ones(1)})
    copy.deepcopy(net).load_state_dict(nn.DataParallel(Net()).state_dict())  # as averages are
