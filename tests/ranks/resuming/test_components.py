"""What a host has fitted is remembered, and one thing more as docs/contributing.md shows it."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from robomimic_ddp.checkpoint import STATE, FoundRun
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.distributed import group
from robomimic_ddp.training.run import draw_into
from robomimic_ddp.training.state import state_components, state_saver
from tests.ranks.pool import RankError
from tests.ranks.running import running
from tests.ranks.toy import make_algo


class Waits(state_components.Component):
    name, per_rank = "waits", True

    def state_dict(self):
        return self.run.progress.waited

    def load_state_dict(self, state, saved):
        self.run.progress.waited = 0.0 if state is None else state


def train(directory, waited=None, kinds=(Waits,)):
    """What this rank has waited after it resumed; `waited`: saves this times the rank instead."""
    found = FoundRun(directory, "state") if waited is None else None
    added = mock.patch.object(state_components, "KINDS", (*state_components.KINDS, *kinds))
    with added, running(directory, found) as run:
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        if waited is not None:
            run.progress.waited = waited * group.rank()
            saver.epoch_end(1)
        return getattr(run.progress, "waited", None)


def fitted(directory, found=None):
    """Clusters of the algorithm after it resumed from `found`; they are fitted again before."""
    with running(directory, found) as run:
        algo = make_algo()
        algo.clusters = SimpleNamespace(bins=torch.rand(3), means=np.random.rand(2))
        saver = state_saver.StateSaver(run, algo)
        saver.restore()
        if found is None:
            saver.epoch_end(1)
        return [algo.clusters.bins.tolist(), algo.clusters.means.tolist()]


def test_what_a_host_has_fitted_is_as_it_was(ranks, tmp_path):
    first, _ = ranks.run(fitted, tmp_path)
    assert ranks.run(fitted, tmp_path, FoundRun(tmp_path, "state"), world_size=3) == [first] * 3


def counted(directory, found=None):
    """The rank that an algorithm notes, and the steps that it counts, after it resumed."""
    with running(directory, found) as run:
        algo = make_algo()
        algo.rank, algo.time_steps = group.rank(), 0
        saver = state_saver.StateSaver(run, algo)
        saver.restore()
        if found is None:
            algo.time_steps = 5
            saver.epoch_end(1)
        return algo.rank, algo.time_steps


def test_a_rank_keeps_its_own_number(ranks, tmp_path):
    ranks.run(counted, tmp_path)
    counts = ranks.run(counted, tmp_path, FoundRun(tmp_path, "state"), world_size=3)
    assert counts == [(0, 5), (1, 5), (2, 5)]


class DataLogger:
    """As robomimic's, with the values of which it logs mean and extremes so far."""

    def __init__(self):
        self._data = {}


def logged(directory, found=None):
    """The values that the host's logger knows after it resumed from `found`."""
    with running(directory, found) as run:
        logger = DataLogger()
        draw_into(logger)
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        if found is None:
            logger._data["Rollout/Success_Rate/reach"] = [0.5, np.float64(0.25)]
            logger._data["odd"] = {"of": "a fork"}
            saver.epoch_end(1)
        return logger._data


def test_running_statistics_of_the_logger_continue(ranks, tmp_path):
    ranks.run(logged, tmp_path)
    resumed = ranks.run(logged, tmp_path, FoundRun(tmp_path, "state"), world_size=3)
    assert resumed == [{"Rollout/Success_Rate/reach": [0.5, 0.25]}, {}, {}]


def test_one_class_and_its_name_in_the_list_are_enough(ranks, tmp_path):
    ranks.run(train, tmp_path, 1.5)
    assert [rank["waits"] for rank in read_file(tmp_path / STATE)["ranks"]] == [0.0, 1.5]
    assert ranks.run(train, tmp_path) == [0.0, 1.5]
    assert ranks.run(train, tmp_path, world_size=3) == [0.0, 1.5, 0.0]


@pytest.mark.bad_input
def test_a_state_without_it_is_refused_by_its_name(ranks, tmp_path):
    ranks.run(train, tmp_path, 1.5, ())
    with pytest.raises(RankError, match="its part 'waits' does not fit .*KeyError: 'waits'"):
        ranks.run(train, tmp_path)
