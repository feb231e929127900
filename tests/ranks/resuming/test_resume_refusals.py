"""A run is resumed with another config, normalisation or data: said, or refused before a step."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from robomimic_ddp.checkpoint import STATE, FoundRun, state_file
from robomimic_ddp.config import options
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import group
from robomimic_ddp.training.state import state_saver
from tests.ranks.pool import RankError
from tests.ranks.running import running
from tests.ranks.toy import make_algo

CONFIG = {
    "train": {
        "seed": 1,
        "batch_size": 4,
        "output_dir": "/a",
        "action_keys": ["pos", "rot"],
        "action_config": {"pos": {"normalization": "min_max"}},
    },
    "observation": {"modalities": {"obs": {"rgb": ["front"]}}},
    "algo": {"horizon": 16},
}


class Items(Dataset):
    """`noise`: each item also has numbers that no two readings share."""

    def __init__(self, size=40, scale=1.0, normalised=1.0):
        self.size, self.scale = size, scale
        self.action_normalization_stats = {
            "pos": {"scale": np.full((1, 2), normalised, np.float32)}
        }
        self.draw = np.random.default_rng()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        actions = np.full((3, 2), (index + 1) / 40 * self.scale, np.float32)
        return {"actions": actions, "obs": {"noise": self.draw.normal(size=3)}, "says": "text"}


def changed(config, dotted, value):
    first, _, rest = dotted.partition(".")
    return {**config, first: changed(config[first], rest, value) if rest else value}


def life(directory, found, how=None, batches=0):
    """One job: resumes if `found`, takes `batches` of the train data, and saves; its prints.

    how: "key" and "value" change the config, "data" the dataset, "options" our options, "rates" the
    learning rates that config and ranks give.
    """
    how = how or {}
    printed = io.StringIO()
    with running(directory, found) as run, contextlib.redirect_stdout(printed):
        run.settings = Settings.of(options.resolve(how.get("options", {})), run.plan, seed=7)
        run.built.learning_rates = how.get("rates", run.built.learning_rates)
        config = changed(CONFIG, how["key"], how["value"]) if "key" in how else CONFIG
        run.config = config
        run.resume.config_before = None
        if group.is_main():
            if found is not None:
                run.resume.config_before = (directory / "config.json").read_bytes()
            (directory / "config.json").write_text(str(config))
        kwargs = {"dataset": Items(**how.get("data", {})), "batch_size": 4, "shuffle": True}
        place = {"rank": group.rank(), "world_size": group.world_size()}
        loader = sampling.train_loader(DataLoader, kwargs, seed=3, batch_size_per_rank=4, **place)
        run.built.loaders["train"] = (
            loader if group.world_size() > 1 else sampling.ReplayedLoader(loader)
        )
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        iterator = iter(run.built.loaders["train"])
        for _ in range(batches):
            next(iterator)
        saver.epoch_end(1)
    return printed.getvalue()


@pytest.fixture
def saved(ranks, tmp_path):
    """The folder of a run of two ranks that was saved between two passes."""
    ranks.run(life, tmp_path, None)
    return tmp_path


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({}, None),
        ({"key": "train.seed", "value": 2}, "train.seed: 1 -> 2"),
        ({"key": "train.output_dir", "value": "/b"}, None),
        ({"options": {"accumulate": "2"}}, "ddp.accumulate: 1 -> 2"),
        ({"data": {"size": 44}}, "data: 40 -> 44 samples"),
        ({"data": {"scale": 0.5}}, "data: actions: 0.5"),
        ({"data": {"normalised": 1.00001}}, None),
        (
            {"rates": [(0.1, 0.4)]},
            "learning rate: the present config and ranks would give 0.4",
        ),
    ],
)
def test_a_difference_that_harms_nothing_is_a_line(ranks, saved, how, line):
    said, of_other = ranks.run(life, saved, FoundRun(saved, "state"), how)
    assert of_other == "" and "resuming training from epoch 2" in said
    usual = ("resuming", "data: pass", "learning rate: 0.01", "note:")
    more = [one for one in said.splitlines() if not one.startswith(usual)]
    assert len(more) == (line is not None) and "".join(more).startswith(line or "")


def test_a_run_that_has_trained_all_its_epochs(ranks, saved):
    how = {"key": "train.num_epochs", "value": 1}
    said, _ = ranks.run(life, saved, FoundRun(saved, "state"), how)
    assert "train.num_epochs=1, and all are trained: raise it to train further" in said


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"key": "train.action_config.pos.normalization", "value": None}, "normalization: "),
        ({"key": "train.action_keys", "value": ["rot", "pos"]}, "train.action_keys: "),
        ({"key": "observation.modalities.obs.rgb", "value": ["left"]}, "obs.rgb: "),
        ({"data": {"normalised": 0.5}}, "action_normalization_stats.pos.scale: 1 -> 0.5"),
    ],
)
def test_another_policy_is_refused_and_everything_stays(ranks, saved, how, line):
    before = {path.name: path.read_bytes() for path in saved.glob("*.pth")}
    before["config.json"] = (saved / "config.json").read_bytes()
    with pytest.raises(RankError) as caught:
        ranks.run(life, saved, FoundRun(saved, "state"), how)
    for reported in caught.value.by_rank.values():
        assert "CheckpointError" in reported and line in reported
        assert "experiment.ckpt_path=" in reported and "without resume" in reported
    assert {name: (saved / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("data, world", [({"scale": 0.5}, 1), ({"size": 44}, 2)])
def test_other_data_in_the_middle_of_a_pass_are_refused(ranks, tmp_path, data, world):
    ranks.run(life, tmp_path, None, None, 2, world_size=world)
    found = FoundRun(tmp_path, "state")
    assert "resuming" in ranks.run(life, tmp_path, found, None, 2, world_size=world)[0]
    with pytest.raises(RankError, match="data, in the middle of a pass"):
        ranks.run(life, tmp_path, found, {"data": data}, world_size=world)


def stream_of_rank_1(state):
    state["ranks"][1]["random"]["torch"] = state["ranks"][1]["random"]["torch"][:8]


def place_in_the_data(state):
    for rank in state["ranks"]:
        del rank["data"]["pass"]


def place_in_the_epoch(state):
    state["inside"] = {"epoch": 2}


def a_model(state):
    del state["model"][""]["optimizers"]


def what_defines_it(state):
    state["defines"] = {"config": None}


def everything(state):
    state.clear()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (stream_of_rank_1, "its part 'random' does not fit"),
        (place_in_the_data, "its part 'data' does not fit .*KeyError: 'pass'"),
        (place_in_the_epoch, "its part 'inside' does not fit .*KeyError: 'steps'"),
        (a_model, "its part 'model' does not fit .*KeyError: 'optimizers'"),
        (what_defines_it, "its part 'defines' does not fit"),
        (everything, "was written by another version .* lacks save_id, epoch"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_part_of_another_version_is_refused_by_its_name(ranks, saved, damage, says):
    """Its checksum is right: somebody else wrote it."""
    state = state_file.read_file(saved / STATE)
    damage(state)
    state_file.write(saved, state, best=False)
    before = (saved / STATE).read_bytes()
    with pytest.raises(RankError, match=f"the state in {saved}.* is complete.*{says}") as caught:
        ranks.run(life, saved, FoundRun(saved, "state"), {"key": "train.seed", "value": 2})
    assert "Resume with the version that wrote it" in str(caught.value)
    assert (saved / STATE).read_bytes() == before
