"""FSDP2 (`ddp.mode=fsdp`): nets, gradients, optimizer state and averages are sharded over ranks.

torch's `fully_shard` is applied late, where DDP would be built: the host has made optimizer and
average, and has loaded its checkpoint, with plain tensors. From then on every parameter is a
DTensor, of which each rank has a slice of the first dimension, and a net's forward is collective,
in `eval()` too. Ranks validate and act at their own pace: they do it with whole copies (`whole`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import fsdp_units, parallel
from robomimic_ddp.errors import WrapError

try:  # torch before 2.6 has neither; `why_not` says so
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
except ImportError:
    DTensor = FSDPModule = fully_shard = None


def why_not(device: str) -> str | None:
    """Return what this torch lacks for FSDP2 on `device` ("cpu", "cuda:0"), or None."""
    if fully_shard is None:
        return f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard (2.6 has it)"
    needed = {"src_data_rank": inspect.signature(distribute_tensor).parameters}
    needed["set_reshard_after_forward"] = vars(FSDPModule)
    for name, version in needed.items():
        if name not in version:
            return f"torch {torch.__version__} has an earlier FSDP2, without {name}"
    stream = getattr(getattr(torch, device.partition(":")[0]), "Stream", None)
    if not hasattr(stream, "record_event"):
        return f"torch {torch.__version__} has FSDP2 on GPUs only"
    return None


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor, or a parameter or buffer of a module, is sharded over ranks."""
    if isinstance(tensor, nn.Module):
        return any(map(is_sharded, [*tensor.parameters(), *tensor.buffers()]))
    return DTensor is not None and isinstance(tensor, DTensor)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Collective where `tensor` is sharded: returns the complete tensor on every rank."""
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `tensor`, in its memory; all of one that is not sharded."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor


def shard_like(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shard `whole`, which every rank has, as `like` is sharded and on its device. Return `whole`
    itself where `like` is not sharded.
    """
    if not is_sharded(like):
        return whole
    whole = whole.detach().to(like.device)
    # Without a source rank nothing is sent. Offloaded shards come from the mesh's device.
    parts = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return parts.to(like.device)


def first_element(tensor: torch.Tensor) -> int:
    """Return the position, in the complete tensor, of the first element of this rank's part."""
    dim = _sharded_dim(tensor)
    rank, ranks = tensor.device_mesh.get_local_rank(dim), tensor.device_mesh.size(dim)
    rows = tensor.shape[0]
    begin = min(rank * -(-rows // ranks), rows)
    return begin * (tensor.numel() // max(rows, 1))


def _sharded_dim(tensor: torch.Tensor) -> int:
    """Return the dimension of the mesh over which `tensor` is sharded."""
    (dim,) = (
        dim for dim, placement in enumerate(tensor.placements) if isinstance(placement, Shard)
    )
    assert tensor.placements[dim].dim == 0
    return dim


def sum_over_shards(value: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Collective where the first of `tensors` is sharded: adds up `value`, which each rank computed
    from its parts, over the parts, in place.
    """
    if tensors and is_sharded(tensors[0]):
        mesh, dim = tensors[0].device_mesh, _sharded_dim(tensors[0])
        dist.all_reduce(value, group=mesh.get_group(dim))
    return value


# ----- sharding


def shard(algo: Any, options: Any, device: str) -> str:
    """Collective: shards the parallel nets of `algo`, the state of its optimizers and its averages,
    which are complete and equal on all ranks, and returns the plan's line about it.

    `options`: ours. Raises WrapError, naming the net, where no part of a net can be a unit, or an
    optimizer has a parameter outside the nets.
    """
    mesh = _mesh(options.fsdp_replicas, device.partition(":")[0], options.timeout)
    settings: dict[str, Any] = {"mesh": mesh, "offload_policy": OffloadPolicy()}
    if options.fsdp_offload:
        settings["offload_policy"] = CPUOffloadPolicy()
    if options.precision == "bf16":
        # Autocast casts inputs, and leaves in fp32 what needs it, as sinusoidal embeddings do.
        settings["mp_policy"] = MixedPrecisionPolicy(
            torch.bfloat16, torch.float32, cast_forward_inputs=False
        )
    before = dict(host_algo.named_parameters(algo))
    counts = []
    for name, net in parallel.parallel_among(host_algo.named_modules(algo)):
        if parallel.has_trainable_parameters(net):
            counts.append(f"{name} in {_shard_net(name, net, settings)} units")
    after = dict(host_algo.named_parameters(algo))
    new = {id(before[name]): after[name] for name in before}
    _require_covered(algo, new)
    for _, optimizer in host_algo.named_optimizers(algo):
        _repoint(optimizer, new)
    _shard_averages(algo)
    on_rank = sum(local(parameter).numel() for parameter in after.values())
    total = sum(parameter.numel() for parameter in after.values())
    copies = f", {options.fsdp_replicas} replicas" if options.fsdp_replicas > 1 else ""
    return f"sharded: {', '.join(counts)}; {on_rank:,} of {total:,} parameters on this rank{copies}"


def _mesh(replicas: int, device_type: str, timeout: float) -> Any:
    """All ranks; with several replicas neighbouring ranks, as those of a node are, share one."""
    if replicas == 1:
        return init_device_mesh(device_type, (group.world_size(),))
    ranks = torch.arange(group.world_size()).view(replicas, -1)
    # init_device_mesh would split the group on GPUs, which torch 2.8 refuses for one of gloo and
    # NCCL; and its groups would have torch's time limit.
    groups = [
        dist.new_subgroups_by_enumeration(rows.tolist(), timedelta(seconds=timeout))[0]
        for rows in (ranks.T, ranks)
    ]
    return DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=("replicate", "shard"))


def _shard_net(name: str, net: nn.Module, settings: dict) -> int:
    """Collective: shards the net, and returns its number of units, with the net itself."""
    parts = fsdp_units.units(net)
    if not parts:
        raise WrapError(
            f"{name} ({type(net).__name__}) cannot be sharded: none of its modules that are called "
            f"has parameters, so all {fsdp_units.size(net):,} would be one unit, gathered whole in "
            "every forward, and FSDP would save next to nothing. Build it of modules that are "
            "called (layers, blocks), or train with ddp.mode=ddp."
        ).on_all_ranks()
    state = parallel.state_of(net)
    try:
        for unit in parts:
            fully_shard(unit, reshard_after_forward=True, **settings)
        # The net's own parameters are needed first in the backward pass that follows at once.
        fully_shard(net, reshard_after_forward=False, **settings)
    except (ValueError, RuntimeError) as error:
        raise WrapError(
            f"{name} ({type(net).__name__}) cannot be sharded: {error} Train with ddp.mode=ddp."
        ).on_all_ranks() from error
    state.parallel = net
    state.reduced = [p for p in net.parameters() if p.requires_grad]
    return len(parts) + 1


def is_unit(module: nn.Module) -> bool:
    """Return whether FSDP gathers `module`'s parameters when it is called."""
    return FSDPModule is not None and isinstance(module, FSDPModule)


def _require_covered(algo: Any, new: dict[int, torch.Tensor]) -> None:
    names = {id(p): name for name, p in host_algo.named_parameters(algo)}
    for name, optimizer in host_algo.named_optimizers(algo):
        for parameter in host_algo.held_by(optimizer):
            sharded = new.get(id(parameter))
            if parameter.requires_grad and not is_sharded(sharded):
                of = names.get(id(sharded), "a parameter")
                raise WrapError(
                    f"optimizer {name} updates {of} {list(parameter.shape)}, which is outside "
                    "every net that DDPUtils.parallel wraps and so in no unit of FSDP: its "
                    "gradient would not be averaged. Put it into a wrapped net, or train "
                    "with ddp.mode=ddp."
                ).on_all_ranks()


def _repoint(optimizer: torch.optim.Optimizer, new: dict[int, torch.Tensor]) -> None:
    """Has `optimizer` update the sharded parameters, with the slices of its state."""
    for entry in optimizer.param_groups:
        entry["params"] = [new.get(id(p), p) for p in entry["params"]]
    states = list(optimizer.state.items())
    optimizer.state.clear()
    for old, state in states:
        parameter = new.get(id(old), old)
        optimizer.state[parameter] = {
            key: _state_like(value, parameter) for key, value in state.items()
        }


def _state_like(value: Any, parameter: torch.Tensor) -> Any:
    if not torch.is_tensor(value):
        return value
    if value.shape == parameter.shape and value.dim():
        return shard_like(value, parameter)
    return value if value.device.type == "cpu" else value.to(parameter.device)


def _shard_averages(algo: Any) -> None:
    """Averages that share memory, as a list and its net may, share their parts."""
    parts: dict[tuple, torch.Tensor] = {}

    def part_of(average: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        if like is None or like.shape != average.shape:
            raise WrapError(
                f"the average of {type(algo).__name__} (ema) has a tensor {list(average.shape)} "
                "that matches none of its nets, so it cannot be sharded with them. Expected the "
                "average of all of self.nets, in their order. Train with ddp.mode=ddp."
            ).on_all_ranks()
        key = (average.data_ptr(), average.shape)
        if key not in parts:
            parts[key] = shard_like(average, like)
        return parts[key]

    nets = {
        name: parameter
        for prefix, net in host_algo.named_nets(algo)
        for name, parameter in net.named_parameters(prefix)
    }
    ema, averages = getattr(algo, "ema", None), []  # whole averages live until all are sharded
    if "shadow_params" in vars(ema or algo):
        averages = list(ema.shadow_params)
        likes = list(nets.values()) if len(nets) == len(averages) else [None] * len(averages)
        ema.shadow_params = [part_of(*pair) for pair in zip(averages, likes)]
    for module in host_algo.averaged_modules(algo):
        named = dict(module.named_parameters())
        swaps = {
            id(p): nn.Parameter(part_of(p, nets.get(f"nets.{name}")), requires_grad=False)
            for name, p in named.items()
        }
        _put(module, swaps)
        averages += named.values()


def _put(module: nn.Module, new: dict[int, nn.Parameter]) -> None:
    """Replaces parameters by id, under each of their names."""
    for owner in module.modules():
        for name, p in owner._parameters.items():
            owner._parameters[name] = new.get(id(p), p)


# ----- validation and rollouts


@contextmanager
def whole(algo: Any, acting: bool = False) -> Iterator[None]:
    """Collective at its start only: inside, nets that are not trained compute with whole weights,
    so that each rank may call them at its own pace.

    Of an algorithm that is `acting` these are the averages, where it has them; else its nets.
    """
    averages = host_algo.averaged_modules(algo) if acting else []
    nets = parallel.parallel_among(host_algo.named_modules(algo))
    with ExitStack() as stack:
        for module in averages:
            stack.enter_context(_whole_average(module))
        for _, net in nets if not averages else ():
            if is_sharded(net):
                stack.enter_context(_whole_net(net))
        yield


@contextmanager
def _whole_average(module: nn.Module) -> Iterator[None]:
    parts = [p for p in module.parameters() if is_sharded(p)]
    copies = [
        nn.Parameter(full(p).to(p.device_mesh.device_type), requires_grad=False) for p in parts
    ]
    _put(module, {id(p): copy for p, copy in zip(parts, copies)})
    try:
        yield
    finally:
        _put(module, {id(copy): p for p, copy in zip(parts, copies)})


@contextmanager
def _whole_net(net: nn.Module) -> Iterator[None]:
    state = parallel.state_of(net)
    modules = list(filter(is_unit, net.modules()))
    net.set_reshard_after_forward(False)
    for module in modules:
        module.unshard()
    state.whole = True
    try:
        yield
    finally:
        state.whole = False
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(module is not net, recurse=False)
