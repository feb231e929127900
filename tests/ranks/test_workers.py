"""`ddp.workers=auto` over real ranks: what each takes of the cores that it may use."""

from __future__ import annotations

from unittest import mock

from robomimic_ddp import env, group, options, plan
from robomimic_ddp import run as _run
from robomimic_ddp.env import LaunchEnv


def workers_of_rank(cores_of, asked):
    """Collective: data workers of this rank, which may run on `cores_of[rank]`; on two nodes of
    two ranks where there are four.
    """
    rank, world = group.rank(), group.world_size()
    launch = LaunchEnv(True, rank, world, rank % 2, 2)
    resolved = options.resolve({"workers": asked})
    with mock.patch.object(env, "own_cores", lambda: cores_of[rank]):
        more = {"use_cuda": False, "batch_size": 4, "data_workers": 3, "cores": 8}
        made = plan.make_plan(launch, resolved, visible_gpus=0, **more)
        run = _run.Run(made, resolved, 7, False)
        _run._share_workers(run)
    return run.plan.data_workers


def test_each_node_shares_its_own_cores(ranks):
    bound, free = [tuple(range(4)), tuple(range(4, 8))], [tuple(range(8))] * 2
    assert ranks.run(workers_of_rank, bound, "auto") == [3, 3]
    assert ranks.run(workers_of_rank, free, "auto") == [3, 3]
    few = [(0, 1)] * 2
    assert ranks.run(workers_of_rank, [*few, *free], "auto", world_size=4) == [0, 0, 3, 3]
    assert ranks.run(workers_of_rank, few, "config") == [3, 3]
    assert ranks.run(workers_of_rank, few, "5") == [5, 5]
