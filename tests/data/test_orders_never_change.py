"""The exact order of samples of a seed. A saved state has only positions in it, so a run that
another version resumes stays the same run only if the order never changes.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

from robomimic_ddp.data.rlds.order.mixture_quota import Quotas
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.window_table import PassPlans, WindowTable
from robomimic_ddp.data.sampling import order_of, train_loader

UNIFORM, WEIGHTED = [2, 1, 3, 6, 0, 5, 7, 4], [1, 1, 0, 3, 3, 3, 3, 3]
HOSTS = [42, 30, 38, 32, 36, 66]
WORKERS = 4970885940040055992
QUOTAS = [[4, 1, 2], [3, 2, 2], [4, 1, 2], [3, 2, 2], [4, 1, 2]]
RUN = {
    (0, 0): ("32f1dd519208", "3167b4aebcdc"),
    (0, 1): ("27e732786c2b", "e97c1d5a79dc"),
    (1, 0): ("6f6fa783f1ce", "bc5858a2d639"),
    (1, 1): ("06ccefff6783", "5506b9768c23"),
    (2, 0): ("4ab571327221", "c920ed5aaf44"),
    (2, 1): ("f7c3792493dd", "2f36ea3e2fb2"),
}
FILES = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 7])
WINDOWS = np.array([5, 0, 9, 4, 12, 3, 8, 1, 7, 11])


def digest(*arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.asarray(array, np.int64).tobytes())
    return whole.hexdigest()[:12]


def schedule():
    """Two ranks for a pass and a half, then three, then two."""
    segments = [(Segment(2, 3, 4), 16), (Segment(3, 2, 8), 5), (Segment(2, 4, 6), 0)]
    return PassSchedule.over(FILES, WINDOWS, 11, 1, segments)


def plan_of(made, part, rank):
    share = made.share(part, rank)
    chosen, count = share.pieces.episode, WINDOWS[share.pieces.episode]
    return PassPlan(
        share.pieces, FILES[chosen], chosen * 100, count - count // 3, count, chosen % 2,
        (np.cumsum(WINDOWS) - WINDOWS)[chosen], share.shuffle, share.before,
    )  # fmt: skip


class OfTheHost(Sampler):
    """Draws from global streams: those whose numbers no version changes."""

    def __len__(self):
        return 6

    def __iter__(self):
        for _ in range(3):
            yield from (int(random.random() * 99), int(np.random.random_sample() * 99))


def test_the_order_of_a_hosts_own_sampler():
    order = order_of(range(99), OfTheHost.__new__(OfTheHost), None, 5)
    assert order(2).tolist() == HOSTS
    assert digest(*map(order, range(6))) == "a22a6f8b47a0"


def test_orders_of_map_style_data():
    data = range(8)
    sampler = WeightedRandomSampler([0.1, 0.7, 0.2, 1.0], 8)
    assert order_of(data, None, True, 5)(2).tolist() == UNIFORM
    assert order_of(data, sampler, None, -5)(2).tolist() == WEIGHTED
    for given in (
        (None, True),
        (None, False),
        (sampler, None),
        (OfTheHost.__new__(OfTheHost), None),
    ):
        assert order_of(data, *given, 5)(0).dtype == np.int64
    kwargs = {"dataset": data, "batch_size": 2, "shuffle": True}
    loader = train_loader(DataLoader, kwargs, rank=1, world_size=2, seed=5, batch_size_per_rank=2)
    loader.sampler.next_pass = 2
    assert [batch.tolist() for batch in loader] == [
        [UNIFORM[1], UNIFORM[3]],
        [UNIFORM[5], UNIFORM[7]],
    ]
    assert loader.loader.generator.initial_seed() == WORKERS


def test_quotas():
    quotas = Quotas([0.5, 0.2, 0.3], 7)
    sizes = quotas.sizes(1, after=1)
    assert [quotas.next() for _ in range(5)] == QUOTAS
    assert [next(sizes) for _ in range(4)] == [quota[1] for quota in QUOTAS[1:]]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_windows_of_an_rlds_run(part, rank):
    plan = plan_of(schedule(), part, rank)
    leaving = plan.shuffle.leaving(0, plan.pieces.windows)
    arrays = [*plan.pieces.columns(), *leaving, plan.index(np.arange(plan.pieces.windows))]
    for taken in (0, 1, 9):
        arrays += vars(plan.block(plan.block_of(taken), taken)).values()
    assert (digest(plan.first_key, *arrays), plan.digest()[:12]) == RUN[part, rank]


TABLE = WindowTable(
    FILES, np.arange(10) * 100, WINDOWS, np.minimum(WINDOWS, 4), np.cumsum(WINDOWS) - WINDOWS
)


def indices(plan):
    return plan.index(np.arange(plan.pieces.windows))


def test_what_ranks_read_of_a_table():
    made = PassSchedule.over(FILES, TABLE.per_pass, 11, 1, [(Segment(2, 3, 4), 0)])
    plans = PassPlans(TABLE, made, 1)
    found = [digest(indices(plans(part)), [plans(part).first_key]) for part in (0, 1, 2)]
    assert found == ["243b6d65f515", "de4df893e6c3", "81dec6d84c18"]
    assert TABLE.digest() == "6d19f30945546308", "saved positions name it"
    assert plans(2) is plans(2) and plans(1) is plans(1) and plans(2) is plans(2)
    read = np.concatenate([indices(PassPlans(TABLE, made, rank)(0)) for rank in (0, 1)])
    assert len(set(read.tolist())) == len(read) > 20


def test_a_part_with_what_two_passes_have_left():
    """Ranks that change twice in a pass: each window is picked as in the pass that it is of."""
    segments = [(Segment(2, 3, 16), 5), (Segment(3, 2, 8), 3), (Segment(2, 4, 6), 0)]
    made = PassSchedule.over(FILES, TABLE.per_pass, 11, 1, segments)
    plans = [TABLE.part_plan(made, 0, rank) for rank in (0, 1)]
    assert {*plans[0].pieces.number.tolist()} == {1, 2}
    assert [digest(indices(plan)) for plan in plans] == ["073c9de57974", "df772e4aefb1"]


@pytest.mark.parametrize("count", [60, 25, 1])
def test_validation_reads_windows_spread_over_the_episodes(count):
    plans = [TABLE.valid_plan(rank, 3, count, buffer=5) for rank in range(3)]
    read = np.concatenate([indices(plan) for plan in plans])
    assert len(read) == count and np.all(np.diff(read) > 0)
    of_episode = np.bincount(np.searchsorted(np.cumsum(WINDOWS), read, "right"), minlength=10)
    assert np.all(np.abs(of_episode - WINDOWS * count / 60) < 1)
    assert [plan.pieces.windows for plan in plans] == [
        count * (rank + 1) // 3 - count * rank // 3 for rank in range(3)
    ]
    if count == 25:
        assert digest(read) == "f3e9dea421a3"
        leaving = [plan.shuffle.leaving(0, plan.pieces.windows)[0] for plan in plans]
        assert digest(*leaving) == "5cc95af53d47"
