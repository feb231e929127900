"""How `ddp.mode=fsdp` shards: precision of messages, replicas, what stays outside, what is said."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

from robomimic_ddp import verify
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import fsdp, parallel
from robomimic_ddp.errors import WrapError
from tests.ranks.toy import make_algo
from tests.versions import NEEDS_FSDP

pytestmark = NEEDS_FSDP
SHARDED = Options(mode="fsdp")
IN_BF16 = replace(SHARDED, precision="bf16")


class Scaled(nn.Module):
    """Two layers, which are units, and a weight that is in none of them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
        self.scale = nn.Parameter(torch.ones(width))
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dtype)
        return self.layers(x * self.scale)


def scaled_algo(options: Options):
    algo = make_algo("single")
    algo.nets["policy"]["noise_pred_net"] = net = Scaled(6)
    for name, part in algo.nets["policy"].items():
        parallel.parallelise(part, "fsdp", name=f"policy.{name}")
    algo.ema_nets = None
    algo.optimizers["policy"] = torch.optim.AdamW(algo.nets.parameters())
    return algo, net, fsdp.shard(algo, options, "cpu")


def lines(replicas: int) -> tuple[str, int]:
    """Return the plan's line, and the parameters that this rank has, counted."""
    algo, _, line = scaled_algo(replace(SHARDED, fsdp_replicas=replicas))
    return line, sum(fsdp.local(p).numel() for p in algo.nets.parameters())


@pytest.mark.parametrize("replicas, words", [(1, ""), (2, ", 2 replicas")])
def test_the_plan_says_what_is_sharded(replicas, words, ranks):
    total = (4 * 6 + 6) + 2 * (6 * 6 + 6) + 6
    for line, on_rank in ranks.run(lines, replicas, world_size=2 * replicas):
        assert line == (
            "sharded: policy.obs_encoder in 2 units, policy.noise_pred_net in 3 units; "
            f"{on_rank} of {total} parameters on this rank{words}"
        )


def meshes() -> set[tuple]:
    algo, net, _ = scaled_algo(replace(SHARDED, fsdp_replicas=2))
    assert fsdp.is_unit(net)
    meshes = [p.device_mesh for p in algo.nets.parameters()]
    return {(mesh.ndim, mesh.size(0), mesh.mesh_dim_names) for mesh in meshes}


def test_weights_outside_of_units_have_the_same_replicas(ranks):
    assert ranks.run(meshes, world_size=4) == [{(2, 2, ("replicate", "shard"))}] * 4


def sums_of_parts(replicas: int) -> tuple:
    _, net, _ = scaled_algo(replace(SHARDED, fsdp_replicas=replicas))
    torch.manual_seed(0)
    whole = [
        torch.randn(7, 3),
        torch.randn(1),
        torch.randn(300, 80),
        torch.randn(5, 3).bfloat16(),
        torch.arange(9),
        torch.randn(0, 3),
        # One is gathered into the memory that another has left.
        *(torch.randn(300, 80).bfloat16() for _ in range(6)),
    ]
    parts = [fsdp.shard_like(tensor, net.scale) for tensor in whole]
    expected = verify.checksums(whole)
    with mock.patch.object(fsdp, "full", wraps=fsdp.full) as gathered:
        mixed = verify.checksums([whole[0], *parts, parts[2]])
    assert gathered.call_count == 7, "those in bf16"
    assert all(torch.equal(fsdp.full(part), tensor) for part, tensor in zip(parts, whole))
    # Elements of two ranks' parts change places: the plain sum stays.
    whole[0][[0, 6]] = whole[0][[6, 0]]
    changed = verify.checksum(fsdp.shard_like(whole[0], net.scale))
    return mixed == [expected[0], *expected, expected[2]], changed == expected[0]


@pytest.mark.parametrize("world_size, replicas", [(2, 1), (3, 1), (4, 2)])
def test_checksums_of_parts_add_up_to_those_of_the_whole(world_size, replicas, ranks):
    assert ranks.run(sums_of_parts, replicas, world_size=world_size) == [(True, False)] * world_size


def gradient_in_bf16() -> tuple:
    """Return the mean of a weight's gradients, 1 on one rank and 1/1024 on the other."""
    algo = make_algo("single")
    net = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    algo.nets, algo.ema_nets = nn.ModuleDict({"net": net}), None
    algo.optimizers["policy"] = torch.optim.SGD(net.parameters(), 0.0)
    for layer in net:
        nn.init.ones_(layer.weight)
    parallel.parallelise(net, "fsdp", name="net")
    fsdp.shard(algo, IN_BF16, "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.tensor([[1.0 if group.is_main() else 2.0**-10]])).sum().backward()
    gradient = fsdp.full(net[0].weight.grad)
    return gradient.dtype, gradient.item()


def test_gradients_of_bf16_are_averaged_in_fp32(ranks):
    """Their mean has more digits than bf16."""
    assert ranks.run(gradient_in_bf16) == [(torch.float32, 0.5 + 2.0**-11)] * 2


def types_of_inputs() -> list[torch.dtype]:
    algo, net, _ = scaled_algo(IN_BF16)
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.ones(2, 6))
    return net.seen


def test_inputs_stay_as_the_host_makes_them(ranks):
    """Autocast casts them where an operation computes in bf16."""
    assert ranks.run(types_of_inputs) == [[torch.float32]] * 2


def frozen_outside() -> tuple:
    """A frozen tensor that an optimizer has and no net: stays, with its state."""
    algo = make_algo("fsdp")
    optimizer = algo.optimizers["policy"]
    outside = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer.add_param_group({"params": [outside]})
    optimizer.state[outside] = {"step": 5, "exp_avg": torch.ones(3)}
    fsdp.shard(algo, SHARDED, "cpu")
    (entry,) = optimizer.param_groups[1:]
    state = optimizer.state[outside]
    return entry["params"][0] is outside, state["step"], state["exp_avg"].tolist()


def test_a_frozen_tensor_outside_the_nets_stays_in_its_optimizer(ranks):
    assert ranks.run(frozen_outside) == [(True, 5, [1.0] * 3)] * 2


def state_of_rows() -> list[bool]:
    """Whether an optimizer's state is sharded: moments as the weight, its rows' mean, a number."""
    algo = make_algo("fsdp")
    optimizer = algo.optimizers["policy"]
    weight = algo.nets["policy"]["obs_encoder"].layer.weight
    optimizer.state[weight] = {
        "exp_avg": torch.ones_like(weight),
        "row": weight.detach().mean(1),
        "step": torch.tensor(1.0),
    }
    fsdp.shard(algo, SHARDED, "cpu")
    state = optimizer.state[algo.nets["policy"]["obs_encoder"].layer.weight]
    return [fsdp.is_sharded(state[name]) for name in ("exp_avg", "row", "step")]


def test_an_optimizers_state_of_other_shapes_stays_whole(ranks):
    assert ranks.run(state_of_rows) == [[True, False, False]] * 2


def averages_beside_a_plain_net() -> tuple:
    """Nets that are not parallel, and their averages, are whole; no average needs gradients."""
    algo = make_algo("fsdp")
    for nets in (algo.nets, algo.ema_nets):
        nets["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    del algo.ema
    fsdp.shard(algo, SHARDED, "cpu")
    averages = list(algo.ema_nets.parameters())
    weight = algo.ema_nets["frozen"].weight
    with fsdp.whole(algo, acting=True):
        is_there = algo.ema_nets["frozen"].weight is weight
        assert fsdp.is_sharded(algo.nets), "which do not act"
        whole = list(algo.ema_nets.parameters())
    needs_gradients = any(p.requires_grad for p in [*averages, *whole])
    return is_there, [fsdp.is_sharded(p) for p in averages], needs_gradients


def test_averages_of_nets_that_are_not_parallel_stay_whole(ranks):
    expected = (True, [True] * 6 + [False] * 2, False)
    assert ranks.run(averages_beside_a_plain_net) == [expected] * 2


def whole_and_back() -> tuple[bool, bool]:
    """Whether weights are whole before a net is called, and in parts afterwards."""
    algo, net, _ = scaled_algo(SHARDED)
    algo.nets.eval()
    with fsdp.whole(algo):
        is_whole = not fsdp.is_sharded(algo.nets)
    with pytest.raises(WrapError, match="policy.noise_pred_net was called in eval"):
        net(torch.ones(2, 6))
    return is_whole, all(fsdp.is_sharded(p) for p in algo.nets.parameters())


def test_weights_are_whole_for_validation_alone(ranks):
    assert ranks.run(whole_and_back) == [(True, True)] * 2


def reducers_parameters() -> bool:
    algo, net, _ = scaled_algo(SHARDED)
    trained = parallel.state_of(net).reduced
    return list(map(id, trained)) == list(map(id, net.parameters()))


def test_a_net_knows_which_sharded_parameters_it_averages(ranks):
    assert ranks.run(reducers_parameters) == [True] * 2
