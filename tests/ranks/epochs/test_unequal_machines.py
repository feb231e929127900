"""What ranks of unequal machines choose together: data workers by the cores that each may use, and
what preset `max` adds; and that the host's edits are on all of them.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from robomimic_ddp.config import env, machine, options
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.planning import plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.distributed import group
from robomimic_ddp.training import run as training_run
from robomimic_ddp.training.presets import with_preset
from robomimic_ddp.training.step import compile
from tests.faults import toy_run
from tests.plans import planned_run
from tests.ranks.pool import RankError


def _limits(limit):
    return {} if limit is None else {"": (limit,)}


def workers_of_rank(cores_of, asked, limit=None, in_turn=False):
    """Collective: data workers of this rank, which may run on `cores_of[rank]`; on two nodes of
    two ranks where there are four, numbered in a row or `in_turn`. `limit`: a file with a
    container's processor time.
    """
    rank, world = group.rank(), group.world_size()
    launch = LaunchEnv(True, rank, world, rank % 2, 2)
    resolved = options.resolve({"workers": asked})
    changed = {"own_cores": lambda: cores_of[rank], "_CORE_LIMITS": _limits(limit)}
    node = f"node{rank % 2 if in_turn else rank // 2}"
    named = mock.patch.object(env, "host_name", lambda: node)
    with named, mock.patch.multiple(machine, **changed):
        more = {"use_cuda": False, "batch_size": 4, "workers": 3, "cores": 8}
        made = plan.make_plan(launch, resolved, visible_gpus=0, **more)
        cores = machine.share_of_cores(machine.own_cores(), group.cores_of_node())
        settings = Settings.of(resolved, made, seed=7).on_node(made, cores)
    return settings.plan.data_workers


def test_each_node_shares_its_own_cores(ranks, tmp_path):
    bound, free = [tuple(range(4)), tuple(range(4, 8))], [tuple(range(8))] * 2
    assert ranks.run(workers_of_rank, bound, "auto") == [3, 3]
    assert ranks.run(workers_of_rank, free, "auto") == [3, 3]
    few = [(0, 1)] * 2
    assert ranks.run(workers_of_rank, [*few, *free], "auto", world_size=4) == [0, 0, 3, 3]
    mixed = [few[0], free[0]] * 2
    assert ranks.run(workers_of_rank, mixed, "auto", None, True, world_size=4) == [0, 3, 0, 3]
    assert ranks.run(workers_of_rank, few, "config") == [3, 3]
    assert ranks.run(workers_of_rank, few, "5") == [5, 5]
    limit = tmp_path / "cpu.max"
    limit.write_text("500000 100000")
    assert ranks.run(workers_of_rank, free, "auto", limit) == [1, 1]


def plan_of_bound_rank(cores_of, workers):
    """Collective: the cores and the notes of the plan of a rank that may run on its cores only."""
    seen, cores = [], cores_of[group.rank()]
    job = toy_run.ToyJob({"data": lambda _: seen.append(training_run.current().plan)})
    job.config.train["num_data_workers"], job.steps = workers, 1
    with mock.patch.object(machine, "own_cores", lambda: cores):
        toy_run.train(job)
    return seen[0].cores, [note for note in seen[0].notes if "data workers" in note]


def test_workers_are_compared_with_the_cores_of_all_ranks_of_a_node(ranks):
    """As torchrun's --numa-binding, or srun, binds them."""
    bound, shared = [(0, 1), (2, 3)], [(0, 1)] * 2
    assert ranks.run(plan_of_bound_rank, bound, 2) == [(4, [])] * 2
    for cores, notes in ranks.run(plan_of_bound_rank, shared, 2):
        assert cores == 2 and "2 rank(s) = 4 data workers on 2 CPU core(s)" in notes[0]


def chosen_on_rank(capabilities):
    """Collective: precision and compilation under preset max, on a GPU of that capability."""
    rank = group.rank()
    settings = planned_run(ranks=2, rank=rank, gpus=2, preset="max").settings
    gpu = mock.patch.object(torch.cuda, "get_device_capability", lambda _: capabilities[rank])
    with gpu, mock.patch.object(compile, "why_not", lambda *_: None):
        found = with_preset(settings, True).options
    return found.precision, found.compile


def test_unequal_gpus_compute_alike(ranks):
    assert ranks.run(chosen_on_rank, [(8, 0), (7, 5)]) == [("fp32", "true")] * 2
    assert ranks.run(chosen_on_rank, [(8, 0), (9, 0)]) == [("bf16", "true")] * 2


def threads_in_training(cores):
    """Of one process that may use `cores`, where the host has asked for two threads."""
    seen, before = [], torch.get_num_threads()
    try:
        with mock.patch.object(machine, "own_cores", lambda: cores):
            torch.set_num_threads(2)
            toy_run.train(toy_run.ToyJob({"step": lambda _: seen.append(torch.get_num_threads())}))
    finally:
        torch.set_num_threads(before)
    return seen[0]


def test_one_process_has_no_more_threads_than_cores(ranks):
    alone = {"world_size": 1}
    found = [ranks.run(threads_in_training, cores, **alone) for cores in ((0,), (0, 1))]
    assert found == [[1], [2]]


def start_where_rank_1_lacks_an_edit():
    lost = {"/b/x.py": ["save"]} if group.rank() == 1 else {}
    with mock.patch.object(host_edits, "lost", lambda package: lost):
        toy_run.train(toy_run.ToyJob({}))


def test_what_one_rank_lacks_is_the_same_error_on_all(ranks):
    """Each node may have a separate checkout."""
    with pytest.raises(RankError) as caught:
        ranks.run(start_where_rank_1_lacks_an_edit)
    assert len(caught.value.by_rank) == 2
    assert all("x.py lacks DDPUtils.save" in text for text in caught.value.by_rank.values())
