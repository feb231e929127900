"""Data workers: how many a rank's cores allow, and what a host's DataLoader gets."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from robomimic_ddp.config import machine
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.machine import share_of_cores
from robomimic_ddp.config.options import Options, resolve
from robomimic_ddp.config.planning.plan import make_plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.data.sampling.worker_options import loader_arguments
from robomimic_ddp.errors import PlanError
from robomimic_ddp.monitoring import throughput

DATA = TensorDataset(torch.arange(12))


def planned(ranks, configured, cores, **options):
    return make_plan(
        LaunchEnv(True, 0, 2 * ranks, 0, ranks),
        resolve(options),
        visible_gpus=0,
        use_cuda=False,
        batch_size=4,
        workers=configured,
        cores=cores,
    )


@pytest.mark.parametrize(
    "ranks, cores, workers", [(4, 16, 3), (4, 4, 0), (8, 4, 0), (1, 1, 0), (2, 7, 2)]
)
def test_auto_leaves_each_rank_a_core_to_train(ranks, cores, workers):
    plan = planned(ranks, 30, cores, workers="auto")
    assert plan.data_workers == workers and not plan.notes
    assert f"data workers: {workers} per rank x {ranks} rank(s)" in plan.describe()


def test_a_node_counts_workers_by_its_own_cores():
    for asked, configured, workers in (("auto", 8, 5), ("7", 8, 7), ("auto", None, None)):
        plan = planned(4, configured, 16, workers=asked)
        settings = Settings.of(resolve({"workers": asked}), plan, seed=1).on_node(plan, 6)
        assert (settings.plan.data_workers, settings.cores) == (workers, 6)


def test_more_workers_than_cores_are_warned_of_and_kept():
    plan = planned(4, 8, 16)
    assert plan.data_workers == 8
    assert (
        "warning: train.num_data_workers=8 x 4 rank(s) = 32 data workers on 16" in plan.describe()
    )
    assert "ddp.workers=auto would start 3" in plan.describe()
    assert "warning: ddp.workers=5 x 4 rank(s) = 20" in planned(4, 0, 16, workers=5).describe()
    with pytest.raises(PlanError, match="ddp.workers=10000 on 16 CPU core.*Use at most"):
        planned(4, 0, 16, workers=10000)
    assert not planned(4, 4, 16).notes
    for most, cores in ((32, 1), (32, 8), (40, 10)):
        assert planned(1, most, cores).data_workers == most
        with pytest.raises(PlanError, match=f"at most {most};"):
            planned(1, most + 1, cores)


def test_workers_are_neither_advised_nor_started_for_rlds_data():
    plan = planned(4, None, 4)
    assert "data workers: none, since one process of each rank reads RLDS data" in plan.describe()
    assert "ddp.workers" not in plan.describe()
    plan = planned(4, None, 16, workers="auto")
    assert "warning: ddp.workers=auto has no effect" in plan.describe()
    host = {"dataset": DATA, "num_workers": 0}
    assert loader_arguments(host, Options(workers="auto"), plan.data_workers, "train") == host
    log = {"Time_Data_Wait_Share": 0.42}
    for is_rlds, advised in ((True, "prepare-data"), (False, "ddp.workers=auto")):
        assert advised in (note := throughput.waiting_note(log, 100, is_rlds))
        assert ("ddp.workers" in note) != is_rlds


def test_shares_of_bound_and_of_free_ranks(monkeypatch):
    monkeypatch.setattr(machine, "_CORE_LIMITS", {})
    assert share_of_cores(range(8), [range(8), range(8, 16)]) == 8
    assert share_of_cores(range(16), [range(16)] * 2) == 8
    assert share_of_cores(range(3), [range(3)] * 2) == 1
    assert share_of_cores(range(3), [range(3)] * 4) == 1
    assert share_of_cores(range(32), [range(32)] * 3 + [range(32, 64)]) == 10


def test_a_loader_is_left_alone_by_default_and_follows_the_options():
    host = {"dataset": DATA, "batch_size": 4, "num_workers": 2, "prefetch_factor": 4}
    assert loader_arguments(host, Options(), 2, "train") == host
    of_workers = {"multiprocessing_context": "fork", "timeout": 9, "persistent_workers": True}
    arguments = loader_arguments({**host, **of_workers}, Options(workers="0"), 0, "train")
    assert arguments == {"dataset": DATA, "batch_size": 4, "num_workers": 0}
    assert len(list(DataLoader(**arguments))) == 3
    loader = {"persistent_workers": True, "prefetch_factor": 3, "pin_memory": False}
    options = Options(workers="auto", loader=loader)
    arguments = loader_arguments({**host, "pin_memory": True}, options, 3, "train")
    assert arguments == {**host, **loader, "num_workers": 3}
    valid = {**host, **loader, "num_workers": 1}
    del valid["persistent_workers"]
    assert loader_arguments(host, options, 3, "valid") == valid
    assert loader_arguments({**host, "in_order": False}, Options(), 2, "train") == host
    alone = loader_arguments({"dataset": DATA}, Options(loader=loader), 0, "train")
    assert alone == {"dataset": DATA, "pin_memory": False}, "nothing that needs workers"


def test_a_stream_of_the_hosts_own_keeps_its_number_of_workers():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    host = {"dataset": Stream(), "num_workers": 0}
    assert loader_arguments(host, Options(workers="auto"), 5, "train") == host
