"""What the host's calls for datasets and loaders are given of the run's plan and options."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from robomimic_ddp import api
from robomimic_ddp.config.host import host_config
from robomimic_ddp.data.rlds import host_datasets, tfds_sharding
from robomimic_ddp.data.rlds.loaders import make
from robomimic_ddp.data.sampling import ReplayedLoader, StreamLoader
from robomimic_ddp.training import data_loaders
from robomimic_ddp.training.run import made_current
from tests.data.host_epochs import Stream
from tests.plans import planned_run

DATA = TensorDataset(torch.arange(64.0))


@pytest.fixture
def recorded(monkeypatch):
    """`recorded(module, name)`: that function's calls; it returns `result`."""

    def record(module, name, result="made"):
        function = mock.Mock(return_value=result)
        monkeypatch.setattr(module, name, function)
        return function.call_args_list

    return record


def test_without_a_run_it_is_the_hosts_loader():
    loaders = api.train_loader(DATA, 8), api.valid_loader(DATA, batch_size=8, drop_last=True)
    assert [type(loader) for loader in loaders] == [DataLoader] * 2
    assert [loader.drop_last for loader in loaders] == [False, True]


def test_one_rank_gets_the_hosts_loaders_with_its_workers():
    run = planned_run(batch_size=8, accumulate=2, configured_workers=0, workers=2)
    with made_current(run):
        train, valid = api.train_loader(DATA, 8), api.valid_loader(DATA, 8)
    assert isinstance(train, ReplayedLoader) and type(valid) is DataLoader
    assert [loader.batch_size for loader in (train, valid)] == [16, 8], "a step's, and the host's"
    assert [loader.num_workers for loader in (train, valid)] == [2, 1]
    assert run.built.loaders == {"train": train, "valid": valid}
    with made_current(planned_run()):
        assert api.train_loader(DATA, batch_size=None).batch_size is None


def test_of_several_ranks_each_validates_on_batches_of_its_own_size():
    run = planned_run(ranks=2, rank=1, batch_size=8, accumulate=2)
    with made_current(run):
        for size in ([8], []):
            assert [len(batch) for (batch,) in api.train_loader(DATA, *size)] == [16, 16]
        assert [len(batch) for (batch,) in api.valid_loader(DATA, 8)] == [8] * 4
        again = api.valid_loader(DATA, 8)
    assert run.built.loaders["valid"] is again


@pytest.mark.parametrize(
    ("role", "preset", "gpus", "pinned"),
    [
        ("train", "fast", 2, True),
        ("train", "safe", 2, False),
        ("valid", "fast", 2, False),
        ("train", "fast", 0, False),
    ],
)
def test_the_loader_of_rlds_data_gets_the_plan(role, preset, gpus, pinned, recorded, monkeypatch):
    calls, data = recorded(make, "make_loader"), SimpleNamespace(is_rlds=True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    run = planned_run(ranks=2, rank=1, gpus=gpus, batch_size=8, preset=preset)
    with made_current(run):
        assert getattr(api, f"{role}_loader")(data, 8) == "made"
    device = torch.device("cuda", 1) if gpus else None
    extra = {"cores": run.settings.cores, "pin_memory": pinned, "device": device}
    assert calls == [((data, 8, 1, 2, 7), extra)]
    assert run.built.loaders == {role: "made"}


def test_a_loader_of_one_rank_that_has_positions_stays_itself(recorded):
    loader = SimpleNamespace(seek=None)
    recorded(make, "make_loader", loader)
    with made_current(planned_run()):
        assert api.train_loader(SimpleNamespace(is_rlds=True), 8) is loader


def test_a_hosts_pipeline_is_sharded_on_several_ranks(recorded):
    calls = recorded(tfds_sharding, "make_sharded")
    assert api.sharded(print) is print
    with made_current(planned_run()):
        assert api.sharded(print) is print
    with made_current(planned_run(ranks=2, rank=1)):
        assert api.sharded(print)(1, end=2) == "made"
        assert isinstance(api.train_loader(Stream(22), batch_size=4), StreamLoader)
    assert calls == [((print, (1,), {"end": 2}), {"rank": 1, "world_size": 2})]


def host(*args, **kwargs):
    return args, kwargs


def test_rlds_datasets_get_the_options(recorded, monkeypatch):
    calls = recorded(host_datasets, "datasets_from_config")
    monkeypatch.setattr(host_config, "uses_rlds", lambda config: config == "rlds")
    load = api.rlds_datasets(host)
    assert load("hdf5", ["key"], lmdb=True) == (("hdf5", ["key"]), {"lmdb": True})
    assert load("rlds", ["key"]) == "made"
    with made_current(planned_run(skip_corrupt=True, language_model="tiny")):
        load("rlds", obs_keys=["key"])
    options = {"skip_corrupt": True, "language_model": "tiny", "device": "cpu"}
    assert calls == [(("rlds", ["key"]), {}), (("rlds",), {"obs_keys": ["key"], **options})]


def test_metadata_of_rlds_data_is_its_own(recorded, monkeypatch):
    monkeypatch.setattr(data_loaders, "is_rlds_folder", lambda path: path == "rlds")
    envs, shapes = (recorded(host_datasets, f"{what}_metadata") for what in ("env", "shape"))
    of_env = api.rlds_env_metadata(host)
    assert of_env("hdf5", 1, verbose=True) == (("hdf5", 1), {"verbose": True})
    assert of_env("rlds") == "made" and envs == [(("rlds",), {})]

    @api.rlds_shape_metadata
    def of_shapes(dataset_config, action_keys, all_obs_keys=None):
        raise AssertionError("this host reads HDF5 files alone")

    entry = {"path": "rlds"}
    assert of_shapes(entry, ["move"], all_obs_keys=["pose"]) == "made"
    with made_current(planned_run(language_model="tiny")):
        of_shapes(entry, ["move"])
    assert [args for args, _ in shapes] == [
        (entry, ["move"], ["pose"], "auto"),
        (entry, ["move"], None, "tiny"),
    ]
