"""The state of sharded nets on real ranks: one file, whatever number of ranks wrote it.

Other modes and the host's checkpoint: test_resumed_host.py, tests/e2e/test_checkpoints.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import STATE, restore_model, state_file
from robomimic_ddp.distributed import group, tree_collectives
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.errors import CheckpointError
from tests.ranks.toy import Encoder
from tests.runs import captured
from tests.versions import NEEDS_FSDP

pytestmark = NEEDS_FSDP


class Algo:
    """As the host's diffusion policy: two nets, AdamW and an average."""

    def __init__(self, seed: int, width: int = 8) -> None:
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))
        parts = nn.ModuleDict({"obs_encoder": Encoder(), "noise_pred_net": head})
        self.nets = nn.ModuleDict({"policy": parts})
        self.ema_nets = copy.deepcopy(self.nets).requires_grad_(False)
        self.optimizers = {"policy": torch.optim.AdamW(self.nets.parameters(), lr=1e-2)}
        self.lr_schedulers = {"policy": None}
        self.steps = 0

    def step(self, x: torch.Tensor) -> None:
        """One step on batch x [B, 4] that is equal on all ranks."""
        policy, (optimizer,) = self.nets["policy"], self.optimizers.values()
        optimizer.zero_grad()
        policy["noise_pred_net"](policy["obs_encoder"](x)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(self.ema_nets.parameters(), self.nets.parameters()):
                average.lerp_(parameter, 0.25)
        self.steps += 1


def make(mode: str, seed: int = 0, width: int = 8) -> Algo:
    """Sharded; in two replicas with mode "hsdp"."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    algo = Algo(seed, width)
    shape, names = (group.world_size(),), ("shard",)
    if mode == "hsdp":
        shape, names = (2, group.world_size() // 2), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for nets in (algo.nets, algo.ema_nets):
        for net in nets["policy"].values():
            fully_shard(net, mesh=mesh)
    (optimizer,) = algo.optimizers.values()
    optimizer.param_groups[0]["params"] = list(algo.nets.parameters())
    return algo


def train(algo: Algo, steps: int) -> None:
    for number in range(algo.steps, algo.steps + steps):
        algo.step(torch.randn(4, 4, generator=torch.Generator().manual_seed(number)))


def resumed_state(folder):
    """Collective: the model of the newest state below `folder`, as a resumed run has it."""
    state = state_file.read_file(folder / STATE) if group.is_main() else {"model": None}
    return tree_collectives.lent(state["model"])


def trained(folder, mode, steps, resumes=True):
    """Collective: resumes, trains and saves; the digests of the model's state before and after, on
    the main rank.
    """
    algo = make(mode, seed=3 if resumes else 0)
    if resumes:
        train(algo, 1)  # a used optimizer, whose state is replaced
        restore_model(algo, resumed_state(folder))
    before = state_file.digest(captured(algo))
    train(algo, steps)
    after = captured(algo)
    if not group.is_main():
        return None
    state_file.write(folder, {"epoch": algo.steps, "model": after}, best=True)
    return before, state_file.digest(after)


@pytest.mark.slow
def test_replicas_of_shards_resume_it(ranks, tmp_path):
    (_, saved), _ = ranks.run(trained, tmp_path, "fsdp", 3, False)
    (before, after), *_ = ranks.run(trained, tmp_path, "hsdp", 2, world_size=4)
    assert before == saved != after
    (again, _), _ = ranks.run(trained, tmp_path, "fsdp", 0)
    assert again == after


def test_the_same_ranks_resume_to_the_bit(ranks, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    (_, expected), _ = ranks.run(trained, whole, "fsdp", 7, False)
    ranks.run(trained, parts, "fsdp", 4, False)
    (_, found), _ = ranks.run(trained, parts, "fsdp", 3)
    assert found == expected


def other_model(folder):
    algo = make("fsdp", width=10)
    try:
        restore_model(algo, resumed_state(folder))
    except CheckpointError as error:
        return str(error)


def test_another_model_is_the_same_error_on_every_rank(ranks, tmp_path):
    ranks.run(trained, tmp_path, "fsdp", 1, False)
    first, second = ranks.run(other_model, tmp_path)
    assert first == second and "the model that the config describes: nets" in first


def shared():
    """Whether tensors that share memory share it when whole; the shards of rank 1 are empty."""
    tensor = make("fsdp").nets["policy"]["noise_pred_net"][0].bias
    one, two = torch.zeros(1, 3), torch.ones(1, 3)
    sharded = [fsdp.shard_like(value, tensor) for value in (one, two)]
    first, again, other = tree_collectives.whole([sharded[0], sharded[0].view(1, 3), sharded[1]])
    if not group.is_main():
        return first is again is other is None
    return first is again and torch.equal(first, one) and torch.equal(other, two)


def test_shared_memory_is_gathered_once(ranks):
    assert ranks.run(shared) == [True, True]


def broadcast_nest() -> tuple:
    """Collective: the nest of numbers that every rank gets, and what this rank's own has then."""
    rank = group.rank()
    halves = torch.full((2,), rank + 0.5, dtype=torch.float64)
    nest = {"count": rank, "parts": [torch.tensor([rank + 3]), halves]}
    assert tree_collectives.whole(nest) is nest
    result = tree_collectives.broadcast(nest)
    assert [part.dtype for part in result["parts"]] == [torch.int64, torch.float64]
    return result["count"], [part.tolist() for part in result["parts"]], halves.tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_rank_gets_the_main_ranks_nest_and_keeps_its_own(world_size, ranks):
    results = ranks.run(broadcast_nest, world_size=world_size)
    assert results == [(0, [[3], [0.5] * 2], [rank + 0.5] * 2) for rank in range(world_size)]
