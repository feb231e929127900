"""BatchNorm over several ranks against torch's own on the concatenated batch, in fp64."""

from __future__ import annotations

import copy
import pickle
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp import verify
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.errors import PlanError
from robomimic_ddp.training import presets
from robomimic_ddp.training.step import activation_checkpointing, sync_batchnorm
from tests.ranks import toy
from tests.ranks.pool import RankError
from tests.versions import NEEDS_CALL_PLACE

CASES = {
    "1d": (nn.BatchNorm1d, (), {}),
    "2d": (nn.BatchNorm2d, (4, 2), {}),
    "cumulative statistics": (nn.BatchNorm2d, (4, 2), {"momentum": None}),
    "not affine": (nn.BatchNorm2d, (4, 2), {"affine": False}),
    "no statistics": (nn.BatchNorm2d, (4, 2), {"track_running_stats": False}),
}
"""Name -> class, what follows [B, C] in its input's shape, settings."""
SIZES = {2: (5, 2), 3: (4, 1, 3)}
"""Number of ranks -> their batches."""
TOLERANCE = 1e-12


def made(name):
    """(layer, [B, C, ...]'s C, ...), the same on every rank."""
    kind, rest, settings = CASES[name]
    torch.manual_seed(1)
    layer = kind(3, **settings).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer, (3, *rest)


def parts(shape, sizes, seed):
    """A batch of which the means and scales differ from part to part, in parts of `sizes`."""
    torch.manual_seed(seed)
    whole = [
        (index + 1) * torch.randn(size, *shape, dtype=torch.float64) + 3 * index
        for index, size in enumerate(sizes)
    ]
    return whole, [torch.randn_like(part) for part in whole]


def passes(layer, batches):
    """Three training passes, and one more without gradients: what came of each, and at the end."""
    found = {}
    for number, (batch, weighted) in enumerate(batches):
        batch.requires_grad_()
        output = layer(batch)
        (output * weighted).sum().backward()
        found[f"output {number}"], found[f"gradient {number}"] = output.detach(), batch.grad
    with torch.no_grad():
        layer(batches[0][0].detach() + 1)
    of_layer = {f"{name}.grad": one.grad for name, one in layer.named_parameters()}
    return found, of_layer, layer.state_dict()


def installed(layer, undo):
    """Collective: the line of the plan."""
    model = SimpleNamespace(nets=nn.ModuleDict({"layer": layer}))
    return sync_batchnorm.install(model, "true", [], undo)


def passes_of_rank(name):
    """Collective."""
    layer, shape = made(name)
    sizes, rank = SIZES[group.world_size()], group.rank()
    drawn = [parts(shape, sizes, seed) for seed in range(3)]
    with ExitStack() as undo:
        installed(layer, undo)
        return passes(layer, [(batch[rank], weighted[rank]) for batch, weighted in drawn])


def passes_of_one(name, sizes):
    layer, shape = made(name)
    drawn = [parts(shape, sizes, seed) for seed in range(3)]
    return passes(layer, [(torch.cat(batch), torch.cat(weighted)) for batch, weighted in drawn])


def largest_difference(of_ranks, expected):
    """Over outputs, gradients of inputs and weights, and running statistics of every rank."""
    found, of_layer, state = expected
    differences = [
        torch.cat([result[0][name] for result in of_ranks]) - value for name, value in found.items()
    ]
    for name, value in of_layer.items():
        differences.append(sum(result[1][name] for result in of_ranks) - value)
    for result in of_ranks:
        assert result[2].keys() == state.keys()
        differences += [result[2][name] - value for name, value in state.items()]
    return max(float(difference.abs().max()) for difference in differences)


@pytest.mark.parametrize("name, world_size", [("2d", 2), *((name, 3) for name in CASES)])
def test_ranks_equal_torch_on_the_concatenated_batch(name, world_size, ranks):
    of_ranks = ranks.run(passes_of_rank, name, world_size=world_size)
    assert largest_difference(of_ranks, passes_of_one(name, SIZES[world_size])) < TOLERANCE
    states = [result[2] for result in of_ranks]
    assert all(torch.equal(one[key], states[0][key]) for one in states for key in one)


def forward_of(sizes):
    """Collective: this rank's output, of [B, 3]."""
    layer, shape = made("1d")
    with ExitStack() as undo:
        installed(layer, undo)
        batch = parts(shape, sizes, 0)[0][group.rank()].requires_grad_()
        output = layer(batch)
        output.square().sum().backward()
        return output.detach()


def test_one_sample_on_each_rank_is_a_batch_of_two(ranks):
    expected = made("1d")[0](torch.cat(parts((3,), (1, 1), 0)[0]))
    assert torch.allclose(torch.cat(ranks.run(forward_of, (1, 1))), expected, 0, TOLERANCE)


def test_a_rank_may_have_no_sample(ranks):
    expected = made("1d")[0](torch.cat(parts((3,), (0, 4), 0)[0]))
    zero, one = ranks.run(forward_of, (0, 4))
    assert zero.shape == (0, 3) and torch.allclose(one, expected, 0, TOLERANCE)


def test_one_sample_on_all_ranks_is_an_error_on_each(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(forward_of, (1, 0))
    assert len(caught.value.by_rank) == 2
    for text in caught.value.by_rank.values():
        assert "Expected more than 1 value per channel when training" in text


def kept_of_the_host():
    """Collective but for eval() on one rank: whether all that must be equal is, by name."""
    equal = {}
    layer, shape = made("2d")
    plain, names = type(layer), list(layer.state_dict())
    own = parts(shape, (4, 4), group.rank())[0][group.rank()]
    untrained, _ = made("no statistics")
    with ExitStack() as undo:
        others = nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.SyncBatchNorm(3)
        line = installed(nn.Sequential(layer, untrained, *others), undo)
        assert "BatchNorm: 2 layer(s)" in line
        assert isinstance(layer, plain) and type(layer) is not plain
        copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
        with pytest.raises(ValueError, match="expected 4D input"):
            layer(own[0])
        output = layer(own)
        for index, copied in enumerate(copies):
            equal[f"output of copy {index}"] = torch.equal(copied(own), output)
            state = layer.state_dict()
            copied_state = copied.state_dict()
            equal[f"state of copy {index}"] = all(
                torch.equal(copied_state[name], state[name]) for name in state
            )
        if group.rank() == 1:  # the other one would not answer
            expected = plain(3).double().eval()
            expected.load_state_dict(layer.state_dict())
            for index, module in enumerate((layer, *copies)):
                equal[f"eval {index}"] = torch.equal(module.eval()(own), expected(own))
            untrained.eval()(own)
            layer.train()
        equal["names"] = list(layer.state_dict()) == names
        layer(own)
    equal["class"] = type(layer) is plain
    alone, _ = made("2d")
    equal["plain again"] = torch.equal(
        nn.functional.batch_norm(own, None, None, alone.weight, alone.bias, True), layer(own)
    )
    return equal


def test_layers_stay_the_hosts(ranks):
    for equal in ranks.run(kept_of_the_host):
        assert all(equal.values()), equal


def in_sixteen_bits():
    """Collective: (in bf16, in fp32, gradients of both) for an input of channels last."""
    found = []
    for kind in (torch.bfloat16, torch.float32):
        layer = made("2d")[0].float()
        with ExitStack() as undo:
            installed(layer, undo)
            torch.manual_seed(group.rank())
            image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).bfloat16()
            image = image.to(kind).requires_grad_()
            output = layer(image)
            output.float().pow(3).sum().backward()
        assert output.is_contiguous(memory_format=torch.channels_last)
        assert output.dtype == image.grad.dtype == kind
        found.append((output.detach().float(), image.grad.float(), layer.weight.grad))
    return found


def test_sixteen_bits_are_computed_with_in_thirty_two(ranks):
    for half, whole in ranks.run(in_sixteen_bits):
        for rounded, exact in zip(half, whole):
            assert float((rounded - exact).norm() / exact.norm()) < 0.01


def on_another_device():
    """torch's own forward, which takes GPUs' tensors only, is reached with all that it asks for."""
    layer = nn.BatchNorm2d(3, device="meta")
    with ExitStack() as undo:
        installed(layer, undo)
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            layer(torch.zeros(2, 3, 4, 4, device="meta"))
        assert layer.eval()(torch.zeros(2, 3, 4, 4, device="meta")).shape == (2, 3, 4, 4)


def test_torchs_layer_is_used_where_it_can_be(ranks):
    ranks.run(on_another_device)


class Net(nn.Module):
    """[B, 3, 8, 8] -> [B, 2]."""

    def __init__(self):
        super().__init__()
        layers = []
        for before, after in ((3, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(16, 2)

    def forward(self, image):
        return self.head(self.layers(image).mean((2, 3)))


def trained(net, batch_of):
    """Five steps on (image, target) = `batch_of(step)`: parameters and buffers."""
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(5):
        image, target = batch_of(number)
        sgd.zero_grad()
        (net(image) - target).square().mean().backward()
        sgd.step()
    return net.state_dict()


def batch_of_step(number):
    torch.manual_seed(number)
    shift = torch.arange(8.0, dtype=torch.float64).view(8, 1, 1, 1)
    image = torch.randn(8, 3, 8, 8, dtype=torch.float64) + shift
    return image, torch.randn(8, 2, dtype=torch.float64)


def trained_on_rank():
    """Collective: in DDP, with buckets that are sent between the layers' messages."""
    torch.manual_seed(0)
    net, rank = Net().double(), group.rank()
    parallel.parallelise(net, "ddp", {"bucket_cap_mb": 0.005})
    with ExitStack() as undo:
        installed(net, undo)
        assert activation_checkpointing.install([net], undo) == [net]

        def own(number):
            return [part[4 * rank : 4 * rank + 4] for part in batch_of_step(number)]

        return trained(net, own)


@NEEDS_CALL_PLACE
def test_a_checkpointed_net_in_ddp_equals_one_process(ranks):
    """Without checkpointing: the ResNet18 of tests/parity/test_algorithms.py."""
    torch.manual_seed(0)
    expected = trained(Net().double(), batch_of_step)
    for state in ranks.run(trained_on_rank):
        for name, tensor in expected.items():
            assert float((state[name] - tensor).abs().max()) < TOLERANCE, name


def line_of_plan(choice):
    """Collective: of the toy, which has one layer."""
    algo = toy.make_algo(batch_norm=True)
    nets = list(algo.nets["policy"].values())
    with ExitStack() as undo:
        options = Options(preset="safe", sync_batchnorm=choice)
        return presets.prepare(algo, options, nets, undo).line


@pytest.mark.parametrize(
    "choice, words",
    [
        ("auto", ["BatchNorm: 1 layer(s)", "each rank's own samples", "ddp.sync_batchnorm=true"]),
        ("true", ["BatchNorm: 1 layer(s) normalise with the samples of all ranks"]),
        ("false", []),
    ],
)
def test_the_plan_says_what_layers_do(choice, words, ranks):
    for printed in ranks.run(line_of_plan, choice):
        assert len(printed.splitlines()) == 1 + bool(words)
        assert all(word in printed for word in words)
    (alone,) = ranks.run(line_of_plan, choice, world_size=1)
    assert len(alone.splitlines()) == 1


def lines_of_the_plan():
    """Collective."""
    nets = nn.Sequential(nn.Linear(1, 1)), nn.Sequential(nn.BatchNorm1d(1))
    with ExitStack() as undo:
        return [
            sync_batchnorm.install(SimpleNamespace(nets=net), choice, [], undo)
            for net, choice in zip(nets, ("auto", "false"))
        ]


def test_the_plan_has_no_line_without_layers_or_where_it_is_off(ranks):
    assert ranks.run(lines_of_the_plan) == [["", ""]] * 2


@pytest.mark.bad_input
def test_data_parallel_is_refused():
    net = nn.Sequential(nn.BatchNorm1d(2))
    parallel.parallelise(net, "dp")
    with ExitStack() as undo, pytest.raises(PlanError, match="ddp.mode=dp.*with torchrun"):
        sync_batchnorm.install(SimpleNamespace(nets=net), "true", [net], undo)


class OwnNorm(nn.BatchNorm1d):
    """Computes nobody knows what."""


def with_another_class():
    with ExitStack() as undo:
        installed(nn.Sequential(nn.BatchNorm1d(2), OwnNorm(2)), undo)


@pytest.mark.bad_input
def test_another_class_is_refused_by_name(ranks):
    with pytest.raises(RankError, match=r"layer layer\.1 is a OwnNorm\. Expected torch's BatchN"):
        ranks.run(with_another_class)


def verified(fault):
    """Collective: two steps, and the comparison at the end of their epoch."""
    algo = toy.make_algo(batch_norm=True)
    rng.seed_streams(0, group.rank())
    with ExitStack() as undo:
        sync_batchnorm.install(algo, "true", [], undo)
        verifier = verify.Verifier(algo)
        verifier.start()
        for _ in range(2):
            toy.step(algo, torch.randn(4, 4))
        if fault and group.rank() == 1:
            algo.nets["policy"]["noise_pred_net"][1].running_mean += 1e-3
        verifier.end()


def test_running_statistics_that_differ_are_a_fault(ranks):
    ranks.run(verified, False)
    with pytest.raises(RankError) as caught:
        ranks.run(verified, True)
    for word in ("VerifyError", "buffer nets.policy.noise_pred_net.1.running_mean", "rank(s) [1]"):
        assert word in str(caught.value)
