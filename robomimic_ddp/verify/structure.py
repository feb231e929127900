"""What a rank trains: its nets, which parameters the retrofit synchronises, its optimizers.

Faults that a rank can see by itself are complaints (texts); what must be the same on all ranks are
items (name -> value).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import optimizer_ddp, parallel
from robomimic_ddp.verify.comparison import Evidence, require_equal
from robomimic_ddp.verify.tensor_checksums import checksums

NUMBERS = (bool, int, float, str, tuple, type(None))
"""Types of an optimizer's settings that are compared; learning rates are (`algo.counters`)."""

_ALIKE = "Build, freeze and add the same nets and optimizers on every rank."
HINTS = {"kind of": _ALIKE, "the parallel nets": _ALIKE, "optimizer": _ALIKE}


def require_same_structure(algo: Any) -> None:
    """Collective: every rank has the same nets, of which the retrofit synchronises every trainable
    parameter. Raises VerifyError on all ranks; also with `ddp.verify` off, since nothing else would
    notice.
    """
    evidence = Evidence("before weights are made equal", equal=structure_items(algo), hints=HINTS)
    evidence.complaints = [*nested(algo), *uncovered(algo)]
    evidence.require()


def require_same_weights(algo: Any) -> None:
    """Collective: equal weights and optimizer state of a loaded model on all ranks. Comes before
    weights are made equal, which would hide that a rank loaded another file.
    """
    named = [*host_algo.named_state(algo), *host_algo.named_optimizer_state(algo)]
    counters = host_algo.counters(algo)
    items: dict[str, Hashable] = {name: repr(value) for name, value in counters.items()}
    sums = checksums(tensor for _, tensor in named)
    items.update((name, pair) for (name, _), pair in zip(named, sums))
    require_equal(
        "after loading a checkpoint",
        items,
        "Every rank must load the same file: a node may have another one, or an older copy, under "
        "that path.",
    )


def state_sums(algo: Any) -> dict[str, tuple[int, int]]:
    """Checksums of every parameter and buffer of the nets and of the averaged copy, by name."""
    named = host_algo.named_state(algo)
    return dict(zip((name for name, _ in named), checksums(tensor for _, tensor in named)))


def parallel_nets(algo: Any) -> list[tuple[str, nn.Module]]:
    """Return (name, net) of every net that was made parallel and has something to train."""
    return [
        (name, module)
        for name, module in parallel.parallel_among(host_algo.named_modules(algo))
        if parallel.has_trainable_parameters(module)
    ]


def structure_items(algo: Any) -> dict[str, Hashable]:
    """Shape, dtype and trainability of every tensor; parameters and settings of the optimizers."""
    items: dict[str, Hashable] = {
        "the parallel nets": tuple(name for name, _ in parallel_nets(algo)),
        "optimizers": tuple(name for name, _ in host_algo.named_optimizers(algo)),
    }
    for name, tensor in host_algo.named_state(algo):
        kind = "trainable" if tensor.requires_grad else "frozen"
        items[f"kind of {name}"] = f"{kind} {str(tensor.dtype)[6:]} {list(tensor.shape)}"
    names = {id(parameter): name for name, parameter in host_algo.named_parameters(algo)}
    for optimizer_name, optimizer in host_algo.named_optimizers(algo):
        for number, entry in enumerate(optimizer.param_groups):
            place = f"optimizer {optimizer_name}, group {number}"
            members = tuple(
                names.get(id(parameter), "none of nets'") for parameter in entry["params"]
            )
            items[f"{place}: parameters"] = members
            for key in sorted(entry):
                if isinstance(entry[key], NUMBERS) and key not in ("lr", "initial_lr"):
                    items[f"{place}: {key}"] = entry[key]
    return items


def settings_items(algo: Any) -> dict[str, Hashable]:
    """Plain numbers of every module, such as a dropout's `p`, and of noise schedulers; and tensors
    that the algorithm has as plain attributes. Before training only: later some are a rank's own.
    """
    owners = [*host_algo.named_modules(algo), *host_algo.noise_schedulers(algo)]
    items: dict[str, Hashable] = {}
    for name, owner in owners:
        numbers = host_algo.plain_numbers([("", owner)])
        items[f"settings of {name}"] = f"{type(owner).__name__} {numbers}"
    items.update((f"settings of {name}", kind) for name, kind in plain_tensor_items(algo).items())
    return items


def plain_tensor_items(algo: Any) -> dict[str, tuple]:
    """Type, shape and checksum of each tensor outside modules: "self.discretizer.bins"."""
    named = host_algo.plain_tensors(algo)
    return {
        name: (tensor.dtype, tuple(tensor.shape), pair)
        for (name, tensor), pair in zip(named.items(), checksums(named.values()))
    }


def uncovered(algo: Any) -> list[str]:
    """Return a complaint when a trainable parameter is in no parallel net and in no optimizer,
    where there are parallel nets: a net that was replaced; or where no optimizer is known.
    Elsewhere that is a target network, as are nets with the layout of another that is trained.
    """
    covered = {
        id(parameter)
        for _, module in host_algo.named_modules(algo)
        if parallel.is_parallel(module)
        for parameter in module.parameters()
    }
    for _, optimizer in host_algo.named_optimizers(algo):
        covered.update(map(id, host_algo.held_by(optimizer)))
    if covered and not parallel_nets(algo):
        return []
    loose = []
    for prefix, nets in host_algo.named_nets(algo):  # elsewhere may be a frozen helper
        known = covered | _targets(nets, covered)
        loose += [
            name
            for name, parameter in nets.named_parameters(prefix)
            if parameter.requires_grad and id(parameter) not in known
        ]
    if not loose:
        return []
    return [
        f"{type(algo).__name__}: {loose[0]} ({len(loose)} parameter(s) in all) is outside the nets "
        f"and optimizers that the retrofit synchronises, so {group.world_size()} ranks would train "
        f"{group.world_size()} different models. Put the net into self.nets, by "
        "DDPUtils.parallel(net) or into an optimizer of self.optimizers, before training begins; "
        "set requires_grad=False on a net that only follows another."
    ]


def _targets(nets: nn.Module, covered: set[int]) -> set[int]:
    """Return the ids of the parameters of target networks: children of `nets` without any `covered`
    parameter, with the names and shapes of a child whose parameters are all covered.
    """
    layouts, trained, targets = {}, [], {}
    for name, child in nets.named_children():
        layouts[name] = [(inner, value.shape) for inner, value in child.named_parameters()]
        members = {id(parameter) for parameter in child.parameters()}
        if members <= covered:
            trained.append(layouts[name])
        elif not members & covered:
            targets[name] = members
    followers = (members for name, members in targets.items() if layouts[name] in trained)
    return set().union(*followers)


def nested(algo: Any) -> list[str]:
    """Return a complaint when nets contain a DataParallel or DDP that is not ours."""
    for name, module in host_algo.named_modules(algo):
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            return [
                f"{name} is a {type(module).__name__}, in or around a net that robomimic-ddp makes "
                "parallel: gradients would be reduced twice or on one rank's devices only. Take "
                "that wrapping out; DDPUtils.parallel(net) replaces it."
            ]
    return []


def unreduced(algo: Any) -> Iterator[str]:
    """Complaints about parameters that were added, or unfrozen, after DDP or FSDP was built, which
    average only those that they were built with; and about a net in `no_sync`.
    """
    for name, module in parallel_nets(algo):
        state = parallel.state_of(module)
        if state.parallel is None or isinstance(state.parallel, DataParallel):
            continue
        known = {id(parameter) for parameter in state.reduced}
        for key, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                yield f"{name}.{key} {_LATE}"
        syncs = getattr(state.parallel, "require_backward_grad_sync", True)
        if not syncs and not state.accumulating:
            yield (
                f"{name} is inside DDP's no_sync(), so its gradients are not synchronised. Leave "
                "it before the last backward of a step."
            )
    for name, optimizer in host_algo.named_optimizers(algo):
        known = {id(parameter) for parameter in _averaged_by(optimizer)}
        trained = optimizer_ddp.outside_parallel_nets(algo, optimizer)
        late = sum(id(parameter) not in known for parameter in trained)
        if late:
            yield f"optimizer {name}, with {late} of its parameter(s), {_LATE}"


_LATE = (
    "was added, replaced or unfrozen after training began, so its gradients are not synchronised. "
    "Do that before the epoch loop."
)


def _averaged_by(optimizer: Any) -> list:
    averaging = optimizer_ddp.of(optimizer)
    return [] if averaging is None else averaging.reduced


def foreign(algo: Any) -> Iterator[str]:
    """Complaints: optimizers with parameters of replaced nets, parallel nets without optimizer."""
    mine = {id(parameter) for _, parameter in host_algo.named_parameters(algo)}
    optimized: set[int] = set()
    for name, optimizer in host_algo.named_optimizers(algo):
        parameters = host_algo.held_by(optimizer)
        optimized.update(map(id, parameters))
        known = mine.union(map(id, _averaged_by(optimizer)))
        strangers = sum(id(parameter) not in known for parameter in parameters)
        if strangers:
            yield (
                f"optimizer {name} updates {strangers} parameter(s) that are in none of the "
                "model's nets: they are not synchronised, or belong to a net that was replaced "
                "after the optimizer was made. Make the optimizer from the nets that are trained."
            )
    for name, module in parallel_nets(algo):
        if not any(id(parameter) in optimized for parameter in module.parameters()):
            yield (
                f"no optimizer has a parameter of {name}: it would never be trained. Give it to "
                "an optimizer, or set requires_grad=False on its parameters to keep it frozen."
            )


def gradient_hint(algo: Any) -> str:
    """Return why reduced gradients may differ, as this rank sees it."""
    nets = parallel_nets(algo)
    unused = [name for name, net in nets if parallel.state_of(net).training_forwards == 0]
    if unused:
        return (
            f"{', '.join(unused)} was never called in training mode: it was trained past its "
            "parallel forward (through net.forward, another method, or while in eval())."
        )
    if not nets:
        return "Gradients were changed on some ranks only, or after they were averaged."
    return (
        "A part of a net was trained past its parallel forward, for example through another "
        "method, or gradients were changed on some ranks only."
    )


def buffer_sums(algo: Any) -> dict[str, Hashable]:
    """Local: the checksum of each buffer of its nets."""
    named = [
        (f"{prefix}.{name}", buffer)
        for prefix, nets in host_algo.named_roots(algo)
        for name, buffer in nets.named_buffers()
    ]
    return dict(zip((name for name, _ in named), checksums(tensor for _, tensor in named)))


def shared_buffers(algo: Any) -> set[str]:
    """Return the names of buffers in layers that know a group, such as SyncBatchNorm."""
    return {
        f"{prefix}.{name}.{buffer}"
        for prefix, nets in host_algo.named_roots(algo)
        for name, module in nets.named_modules()
        if isinstance(module, _BatchNorm) and hasattr(module, "process_group")
        for buffer in module._buffers
    }
