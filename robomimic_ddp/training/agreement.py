"""What all ranks must have alike before they train: the host's edits, the job, and the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from robomimic_ddp import verify
from robomimic_ddp.config import launch_env, machine, tree
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.errors import PatchError
from robomimic_ddp.training import run as _run

_NODE_LOCAL_KEYS = {
    "train.data",
    "train.data_path",
    "train.data_cache_dir",
    "train.output_dir",
    "experiment.ckpt_path",
}


def join(
    run: _run.Run, launch: launch_env.LaunchEnv, plan_of: Callable, stack: ExitStack
) -> Settings:
    """Collective: enters the process group, compares the job, and returns the settings for this
    node.
    """
    patience = run.plan.timeout_seconds
    joined = group.process_group(run.plan.backend, patience, launch.attempt, run.plan.device)
    stack.enter_context(joined)
    require_all_seams(run.config)
    cores_of_node = group.cores_of_node()
    cores = machine.share_of_cores(machine.own_cores(), cores_of_node)
    of_node = launch if launch.tells_node else replace(launch, local_world_size=len(cores_of_node))
    # A launcher may have bound each rank to some cores, such as torchrun's --numa-binding.
    cores_of_ranks = machine.within_core_limit(len({*itertools.chain(*cores_of_node)}))
    settings = run.settings.on_node(plan_of(of_node, cores=cores_of_ranks), cores)
    require_same_job(run)
    return settings


def require_all_seams(config: Any) -> None:
    """Collective: raises PatchError where a rank has loaded the host with some of our edits only.
    One process does without them; several would write the same files, or wait for each other.
    """
    package = host_edits.package_folder(type(config).__module__.partition(".")[0])
    for lost in group.gather_objects(host_edits.lost(package)):
        if lost:
            raise PatchError(host_edits.half_patched(lost)).on_all_ranks()


def require_same_job(run: _run.Run) -> None:
    """Collective: the same code, plan, options and host config on every rank, before anything is
    built from them. Paths may differ: nodes may keep data in separate places.
    """
    config, plan = run.config, run.plan
    items: dict[str, Hashable] = {**verify.software(type(config).__module__.split(".")[0])}
    items.update((f"option {name}", repr(value)) for name, value in asdict(run.options).items())
    items.update(
        (f"config {key}", repr(value))
        for key, value in tree.named(config)
        if key not in _NODE_LOCAL_KEYS
    )
    items |= {
        "mode": plan.mode,
        "backend": plan.backend,
        "device": plan.device.split(":")[0],
        "batch per rank": plan.batch_per_rank,
    }
    verify.require_equal(
        "at start",
        items,
        "Start every rank with the same code, config, options and kind of device. (A rank with "
        "cpu, where others have cuda, is on a node that sees no GPU.)",
    )


def require_same_model(run: _run.Run, model: Any) -> None:
    """Collective: the same nets on all ranks, and none that has loaded other weights."""
    verify.require_same_structure(model)
    loaded = run.settings.fine_tuning or host_algo.steps(model) > 0
    if run.options.verify and any(group.gather_objects(loaded)):
        verify.require_same_weights(model)


def make_equal(model: Any) -> dict[str, tuple[int, int]] | None:
    """Collective: gives all ranks the main rank's weights. Ranks that drew the same ones, as hosts
    with a seed do, are not sent any: then it returns the sums that have proven it.
    """
    sums = verify.state_sums(model)
    if len(set(group.gather_objects(verify.digest(sums)))) == 1:
        return sums
    host_algo.make_equal(model)
    return None


def make_plain_tensors_equal(model: Any) -> str | None:
    """Collective: gives all ranks the main rank's tensors outside modules where theirs differ, as
    clusters do that a host has fitted to each rank's samples. Returns a line that names them.
    Tensors of unequal shapes stay as they are, for `ddp.verify` to refuse.
    """
    gathered = group.gather_objects(verify.plain_tensor_items(model))
    unequal = [
        name
        for name, (dtype, shape, _) in gathered[0].items()
        if len({rank.get(name) for rank in gathered}) > 1
        and all(rank.get(name, ())[:2] == (dtype, shape) for rank in gathered)
    ]
    tensors = host_algo.plain_tensors(model)
    group.broadcast_tensors([tensors[name] for name in unequal])
    if not unequal:
        return None
    return f"made equal on all ranks, to rank 0's: {', '.join(unequal)}"
