"""`ddp.mode=fsdp` on real ranks: what each rank keeps, and what computes with whole weights.

That it trains as one process does: tests/parity; that faults are named: tests/faults.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from robomimic_ddp import verify
from robomimic_ddp.config import tree
from robomimic_ddp.config.options import Options
from robomimic_ddp.config.planning import memory
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import fsdp, fsdp_units, parallel
from robomimic_ddp.errors import WrapError
from robomimic_ddp.training.step import backprop, ema, fused_optimizers
from robomimic_ddp.training.step.ema import AveragedModel, AveragedParameters
from robomimic_ddp.verify import gradient_means
from tests.faults.toy_run import Average
from tests.ranks.pool import RankError
from tests.ranks.toy import loss_of, make_algo, step
from tests.versions import NEEDS_FSDP

pytestmark = NEEDS_FSDP
SHARDED = Options(mode="fsdp")


def sharded_algo(options: Options = SHARDED):
    """Return a toy with an average, sharded after a step with complete tensors."""
    algo = make_algo("fsdp")
    algo.ema = Average(algo.nets)
    algo.nets.eval()  # past the nets' parallel forward
    step(algo, torch.ones(3, 4))
    algo.nets.train()
    algo.ema.step(algo.nets, algo.ema_nets)
    fsdp.shard(algo, options, "cpu")
    return algo


def outputs(nets: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return nets["policy"]["noise_pred_net"](nets["policy"]["obs_encoder"](x))


def with_a_parameter_outside(is_in_a_net: bool) -> None:
    algo, extra = make_algo("fsdp"), nn.Linear(2, 2)
    if is_in_a_net:
        algo.nets["extra"] = extra
    algo.optimizers["policy"].add_param_group({"params": [extra.weight]})
    fsdp.shard(algo, SHARDED, "cpu")


@pytest.mark.bad_input
@pytest.mark.parametrize("is_in_a_net, name", [(True, "nets.extra.weight"), (False, "a parameter")])
def test_a_parameter_that_would_not_be_averaged_is_named(is_in_a_net, name, ranks):
    with pytest.raises(RankError, match=rf"policy updates {name} \[2, 2\], which is out"):
        ranks.run(with_a_parameter_outside, is_in_a_net)


def at_its_own_pace() -> tuple:
    algo, x = sharded_algo(), torch.ones(2, 4)
    algo.nets.eval()
    with pytest.raises(WrapError, match="policy.obs_encoder was called in eval.* outside"):
        outputs(algo.nets, x)
    whole = make_algo("single")
    found = []
    for acting, nets, expected in (
        (False, algo.nets, whole.nets),
        (True, algo.ema_nets, whole.ema_nets),
    ):
        named = nets.state_dict()
        expected.load_state_dict({name: fsdp.full(one) for name, one in named.items()})
        before = verify.state_sums(algo)
        with fsdp.whole(algo, acting=acting):
            for _ in range(1 + 3 * group.rank()):  # ranks are alone
                output = outputs(nets, x)
        found.append(torch.equal(output, outputs(expected, x)))
        found.append(fsdp.is_sharded(nets) and verify.state_sums(algo) == before)
    algo.nets.train()
    loss = loss_of(algo, x)
    found.append(all(map(fsdp.is_sharded, algo.nets.parameters())))  # between forward and backward
    loss.backward()
    return (*found, fsdp.is_sharded(algo.nets))


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_validate_and_act_at_their_own_pace(world_size, ranks):
    assert ranks.run(at_its_own_pace, world_size=world_size) == [(True,) * 6] * world_size


def all_is_sharded() -> list:
    algo = sharded_algo()
    step(algo, torch.ones(2, 4))
    optimizer = algo.optimizers["policy"]
    held = [*algo.nets.parameters(), *algo.ema.shadow_params, *algo.ema_nets.parameters()]
    held += [one.grad for one in algo.nets.parameters()]
    held += [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert set(map(id, host_algo.held_by(optimizer))) == set(map(id, algo.nets.parameters()))
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}
    assert [name for name, _ in host_algo.parts(algo)] == [""], "nothing of torch's is a part"
    return [fsdp.is_sharded(one) for one in held]


def test_nets_gradients_optimizer_and_averages_are_sharded(ranks):
    for found in ranks.run(all_is_sharded):
        assert found == [True] * 6 * 6


def average(in_one_pass: bool, mode: str) -> list[torch.Tensor]:
    """Collective: return the average of a module after three steps of it."""
    algo = make_algo(mode)
    algo.ema, algo.ema_nets = AveragedModel(algo.nets, power=0.75), None
    with ExitStack() as undo:
        if in_one_pass:
            assert ema.update_in_one_pass(algo, undo)
        if mode == "fsdp":
            fsdp.shard(algo, SHARDED, "cpu")
        for _ in range(3):
            step(algo, torch.ones(2, 4))
            algo.ema.step(algo.nets)
        assert fsdp.is_sharded(algo.ema.averaged_model) == (mode == "fsdp")
        found = [*algo.ema.shadow_params, *algo.ema.averaged_model.parameters()]
        return [fsdp.full(one).detach().clone() for one in found]


def averages_differ(in_one_pass: bool) -> float:
    sharded, complete = (average(in_one_pass, mode) for mode in ("fsdp", "ddp"))
    return max(float((one - other).abs().max()) for one, other in zip(sharded, complete))


@pytest.mark.parametrize("in_one_pass", [True, False])
def test_the_average_of_a_sharded_module_is_that_of_the_complete_one(in_one_pass, ranks):
    """Averages of parameters, as hosts of later versions have them: tests/parity."""
    assert max(ranks.run(averages_differ, in_one_pass)) < 1e-6


def average_of_other_tensors() -> None:
    algo = make_algo("fsdp")
    algo.ema = Average(algo.nets)
    algo.ema.shadow_params.pop()
    fsdp.shard(algo, SHARDED, "cpu")


@pytest.mark.bad_input
def test_an_average_of_other_tensors_is_refused(ranks):
    with pytest.raises(RankError, match="the average of SimpleNamespace .* cannot be sharded"):
        ranks.run(average_of_other_tensors)


def with_frozen_parameters() -> list:
    """One parameter of a unit, and all of a net."""
    algo = make_algo("single")
    algo.nets["policy"]["frozen"] = nn.Linear(2, 2)
    for name, net in algo.nets["policy"].items():
        parallel.parallelise(net, "fsdp", name=f"policy.{name}")
    algo.nets["policy"]["frozen"].requires_grad_(False)
    algo.nets["policy"]["obs_encoder"].layer.bias.requires_grad_(False)
    algo.ema = AveragedModel(algo.nets)
    algo.ema_nets = None
    with ExitStack() as undo:
        ema.update_in_one_pass(algo, undo)
        fsdp.shard(algo, SHARDED, "cpu")
        means = gradient_means.watch(algo, algo.optimizers["policy"], "none")
        before = {name: fsdp.full(one).clone() for name, one in algo.nets.named_parameters()}
        step(algo, torch.ones(2, 4))
        assert means.compare() == (None, [])
        algo.ema.step(algo.nets)
    with fsdp.whole(algo):
        outputs(algo.nets.eval(), torch.ones(2, 4))
    named = algo.nets.named_parameters()
    return [name for name, one in named if torch.equal(before[name], fsdp.full(one))]


def test_frozen_parameters_stay_as_they_are(ranks):
    frozen = ["obs_encoder.layer.bias", "frozen.weight", "frozen.bias"]
    assert ranks.run(with_frozen_parameters) == [[f"policy.{name}" for name in frozen]] * 2


def with_a_parameter_of_no_dimension() -> None:
    algo = make_algo("fsdp")
    algo.nets["policy"]["obs_encoder"].scale = nn.Parameter(torch.tensor(1.0))
    fsdp.shard(algo, SHARDED, "cpu")


@pytest.mark.bad_input
def test_what_torch_cannot_shard_is_named(ranks):
    with pytest.raises(
        RankError, match="WrapError: policy.obs_encoder .* cannot be sharded: .*scal"
    ):
        ranks.run(with_a_parameter_of_no_dimension)


def types_of_weights(precision: str) -> set[torch.dtype]:
    """Return those with which modules compute in a step."""
    algo, seen = sharded_algo(replace(SHARDED, precision=precision)), set()
    for module in algo.nets.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda module, _: seen.add(module.weight.dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        step(algo, torch.ones(2, 4))
    assert {one.dtype for one in algo.nets.parameters()} == {torch.float32}
    return seen


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_weights_are_gathered_in_the_precision_of_the_step(precision, dtype, ranks):
    assert ranks.run(types_of_weights, precision) == [{dtype}] * 2


class WholeBytes(TorchDispatchMode):
    """most: bytes that are in memory at once, over those at its start and the sharded gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._parts, self._storages, self.most = list(net.parameters()), {}, 0
        self._note(self._parts)
        self._before = self._total()

    def _note(self, nest: Any) -> None:
        for tensor in filter(torch.is_tensor, tree.leaves(nest)):
            storage = fsdp.local(tensor).untyped_storage()
            if self._storages.get(id(storage), lambda: None)() is None:
                self._storages[id(storage)] = weakref.ref(storage)

    def _total(self) -> int:
        held = (storage() for storage in self._storages.values())
        return sum(one.nbytes() for one in held if one is not None)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), named: Any = None):
        result = function(*args, **(named or {}))
        self._note((args, named, result))
        gradients = [one.grad for one in self._parts if one.grad is not None]
        own = sum(fsdp.local(one).nbytes for one in gradients)
        self.most = max(self.most, self._total() - self._before - own)
        return result


def whole_bytes_of_a_parameter(units: int) -> float:
    """In a step of a net of equal units, activations being negligible."""
    algo, size = make_algo("single"), 256
    net = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(units)))
    algo.nets, algo.ema_nets = nn.ModuleDict({"net": net}), None
    algo.optimizers["policy"] = torch.optim.AdamW(net.parameters())
    parallel.parallelise(net, "fsdp", name="net")
    fsdp.shard(algo, SHARDED, "cpu")
    for _ in range(2):  # the first one makes buffers, too
        net.zero_grad()
        with WholeBytes(net) as counted:
            net(torch.ones(2, size)).sum().backward()
    # A unit's reduced gradients, which are on their way to those that `counted` leaves out.
    pending = 4 / units / group.world_size()
    return counted.most / (units * size**2) - pending


def test_the_plans_estimate_of_memory_is_what_torch_holds(ranks):
    """A unit may have a quarter of a net; smaller ones need less."""
    expected = memory.GATHERED_BYTES
    for found in ranks.run(whole_bytes_of_a_parameter, 4):
        assert expected - 0.1 < found < expected + 0.1
    assert max(ranks.run(whole_bytes_of_a_parameter, 8)) < expected - 0.5


# ----- the norm of a gradient in parts


def gradient_norms(mode: str, replicas: int = 1) -> list[float]:
    """Collective: the squared norms of two steps, of which the second one is clipped."""
    algo, norms = make_algo(mode), []
    if mode == "fsdp":
        fsdp.shard(algo, replace(SHARDED, fsdp_replicas=replicas), "cpu")
    policy, batch = algo.nets["policy"], torch.arange(8.0).view(2, 4) + group.rank()
    for max_grad_norm in (None, 0.1):
        loss = policy["noise_pred_net"](policy["obs_encoder"](batch)).square().mean()
        norms.append(backprop.update(algo.nets, algo.optimizers["policy"], loss, max_grad_norm))
    return norms


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_norm_of_a_sharded_gradient_is_that_of_the_complete_one(replicas, ranks):
    """Each rank has another batch."""
    sharded, complete = (
        ranks.run(gradient_norms, *call, world_size=2 * replicas)
        for call in (("fsdp", replicas), ("ddp",))
    )
    assert all(one == sharded[0] for one in sharded)
    assert sharded[0] == pytest.approx(complete[0], rel=1e-5)
    assert complete[0][1] == pytest.approx(0.1**2, rel=1e-4)
    assert complete[0][0] > 0.1**2


def flipped_in_one_replica() -> list:
    algo = sharded_algo(replace(SHARDED, fsdp_replicas=2))
    before = verify.digest(verify.state_sums(algo))
    if group.rank() == 3:
        fsdp.local(next(algo.nets.parameters()))[0, 0] += 1
    after = verify.digest(verify.state_sums(algo))
    return group.gather_objects(before == after)


def test_replicas_are_compared(ranks):
    """Both ranks of the replica with the changed part see its other sum, and no others."""
    found = ranks.run(flipped_in_one_replica, world_size=4)
    assert found == [[True, True, False, False]] * 4


def limits_of_replicas() -> list[float]:
    algo = sharded_algo(replace(SHARDED, fsdp_replicas=2, timeout=77.0))
    mesh = next(algo.nets.parameters()).device_mesh
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return [one._get_backend(torch.device("cpu")).options._timeout.seconds for one in groups]


def test_replicas_wait_as_long_as_the_run_says(ranks):
    assert ranks.run(limits_of_replicas, world_size=4) == [[77, 77]] * 4


# ----- units


class Past(nn.Module):
    """Calls a part past its call, and reads the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))})
        self.attention = nn.MultiheadAttention(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts["inner"].forward(x)
        return self.attention(x, x, x)[0]


class Core(nn.Module):
    """Has its layers under two names, as robomimic's image encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
        self.nets = nn.Sequential(self.backbone, nn.Flatten(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.nets(x)


def test_units_are_modules_that_are_called():
    past = Past()
    assert fsdp_units.units(past) == [*past.parts["inner"]], "the attention, too, is called past"
    outer = nn.Sequential(past.attention)
    assert fsdp_units.units(outer) == [past.attention], "whose parts are never called"
    core = Core()
    assert fsdp_units.units(core) == [*core.backbone, core.nets[2]]
    half = nn.Sequential(core, *(nn.Linear(4, 4) for _ in range(40)))
    assert fsdp_units.units(half)[0] is core, "parts with two names are in it alone"
    assert fsdp_units.units(nn.Linear(3, 3)) == []
    sizes = ((100, 90), (15, 10), (23, 4))
    three = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
    assert fsdp_units.units(three) == [*three[:2]], "the last one has less than a hundredth"
    many = nn.Sequential(*(part for _ in range(150) for part in (nn.Linear(2, 2), nn.Tanh())))
    assert fsdp_units.units(many) == [*many[::2]], "no part has a hundredth"


def test_a_small_part_that_is_called_past_is_no_unit():
    net = Past()
    net.rest = nn.Sequential(*(nn.Linear(6, 6) for _ in range(40)))
    assert fsdp_units.units(net)[:2] == [*net.parts["inner"]]
    names = {"nn": nn}
    exec("class Unknown(nn.Sequential):\n    def forward(self, x): return x", names)
    unknown = names["Unknown"](*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(9)))
    parts = [part[0] for part in unknown]
    assert fsdp_units.units(unknown) == parts, "its source cannot be read: it may call past them"


@pytest.mark.parametrize("blocks, units", [(3, 6), (4, 4)])
def test_a_quarter_of_a_net_is_a_unit_and_a_third_is_not(blocks, units):
    two = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(blocks)]
    assert len(fsdp_units.units(nn.Sequential(*two))) == units


def test_units_of_the_default_net_hold_at_most_a_quarter():
    from robomimic.models.diffusion_policy_nets import ConditionalUnet1D

    with torch.device("meta"):
        net = ConditionalUnet1D(input_dim=7, global_cond_dim=64)
    sizes = [sum(one.numel() for one in unit.parameters()) for unit in fsdp_units.units(net)]
    total = sum(one.numel() for one in net.parameters())
    assert max(sizes) <= total / 4 and min(sizes) >= total / 100
    assert sum(sizes) >= 0.9 * total and len(sizes) < 20


# ----- torch


class EarlierModule:
    """An FSDPModule without what later torches have."""


@pytest.mark.parametrize(
    "place, value, words",
    [
        ("fsdp.fully_shard", None, "has no torch.distributed.fsdp.fully_shard"),
        ("fsdp.FSDPModule", EarlierModule, "earlier FSDP2, without set_reshard_after_forward"),
        ("fsdp.distribute_tensor", lambda tensor: tensor, "earlier FSDP2, without src_data_rank"),
        ("torch.cpu.Stream", object, "has FSDP2 on GPUs only"),
    ],
)
def test_what_a_torch_lacks(place, value, words):
    assert fsdp.why_not("cpu") is None and fsdp.why_not("cuda:0") is None
    owner, name = {"fsdp": fsdp, "torch": torch.cpu}[place.split(".")[0]], place.split(".")[-1]
    with mock.patch.object(owner, name, value):
        assert words in fsdp.why_not("cpu")


# ----- memory


DEFAULT_DIMS = (256, 512, 1024)


def bytes_of_a_rank(mode: str, dims: Sequence[int] = DEFAULT_DIMS) -> int:
    """Collective: bytes of all tensors of this process after a step of a net."""
    from robomimic.models.diffusion_policy_nets import ConditionalUnet1D

    def take_step() -> None:
        loss = (
            nets["unet"](torch.zeros(1, 8, 7), torch.zeros(1), torch.zeros(1, 64)).square().mean()
        )
        backprop.update(nets, algo.optimizers["policy"], loss)
        algo.ema.step(nets.parameters())

    gc.collect()
    before = tensor_bytes()
    torch.manual_seed(0)
    with ExitStack() as undo:
        unet = parallel.parallelise(ConditionalUnet1D(7, 64, down_dims=dims), mode, name="unet")
        nets = nn.ModuleDict({"unet": unet})
        algo = SimpleNamespace(nets=nets)
        algo.optimizers = {"policy": torch.optim.AdamW(nets.parameters())}
        algo.ema = AveragedParameters(nets.parameters(), power=0.75, use_ema_warmup=True)
        ema.update_in_one_pass(algo, undo)
        fused_optimizers.install(algo, undo)
        if mode == "fsdp":
            fsdp.shard(algo, SHARDED, "cpu")
        else:
            parallel.state_of(unet).build(unet)
        take_step()
        gc.collect()
        return tensor_bytes() - before


def tensor_bytes() -> int:
    storages = {}
    for one in gc.get_objects():
        # isinstance would ask a dead weakref.proxy for its class.
        is_real = issubclass(type(one), torch.Tensor) and not isinstance(one, FakeTensor)
        if is_real and one.device.type == "cpu":  # earlier tests may have compiled
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None:
                    storage = fsdp.local(tensor).untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.slow
@pytest.mark.parametrize("world_size, dims", [(2, (64, 128, 256)), (4, DEFAULT_DIMS)])
def test_a_rank_keeps_its_share_of_a_net(world_size, dims, ranks):
    of_ddp = ranks.run(bytes_of_a_rank, "ddp", dims, world_size=1, timeout=200)[0]
    of_fsdp = ranks.run(bytes_of_a_rank, "fsdp", dims, world_size=world_size, timeout=300)
    print(of_ddp, of_fsdp)
    assert max(of_fsdp) <= 1.05 * of_ddp / world_size
