"""The exact order of samples of a seed. A saved state has only positions in it, so a run that
another version resumes stays the same run only if the order never changes.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, WeightedRandomSampler

from robomimic_ddp.data.rlds.order.mixture_quota import Quotas
from robomimic_ddp.data.rlds.order.pass_order import permutation
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.window_table import PassPlans, WindowTable
from robomimic_ddp.data.sampling import order_of, train_loader

UNIFORM, WEIGHTED = [2, 1, 3, 6, 0, 5, 7, 4], [1, 1, 0, 3, 3, 3, 3, 3]
HOSTS = [42, 30, 38, 32, 36, 66]
WORKERS = 4970885940040055992
QUOTAS = [[4, 1, 2], [3, 2, 2], [4, 1, 2], [3, 2, 2], [4, 1, 2]]
RUN = {
    (0, 0): ("593a8a68ad14", "b29c5ca498af"),
    (0, 1): ("1f070496ea4e", "d120893780e4"),
    (1, 0): ("f0353eb46bb1", "b9112f7158d0"),
    (1, 1): ("3aebc9109ec4", "177c72bc8fa0"),
}
FILES = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 7])
WINDOWS = np.array([5, 0, 9, 4, 12, 3, 8, 1, 7, 11])


def digest(*arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.asarray(array, np.int64).tobytes())
    return whole.hexdigest()[:12]


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
        (SubsetRandomSampler(np.arange(8, dtype=np.int32)), None),
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


TABLE = WindowTable(
    FILES, np.arange(10) * 100, WINDOWS, np.minimum(WINDOWS, 4), np.cumsum(WINDOWS) - WINDOWS
)


def indices(plan):
    return plan.index(np.arange(plan.pieces.windows))


def described(plan):
    """Digests of all that a plan says."""
    arrays = [*plan.pieces.columns(), *plan.shuffle.leaving(0, plan.pieces.windows), indices(plan)]
    for taken in (0, 1, 9):
        arrays += vars(plan.block(plan.block_of(taken), taken)).values()
    return digest(plan.first_key, *arrays), plan.digest()[:12]


@pytest.mark.parametrize(("part", "rank"), RUN)
def test_windows_of_an_rlds_run(part, rank):
    """Of a table with some windows of each episode in a pass. Ranks change twice in a pass, so that
    a part has what two passes have left: each window is picked as in the pass that it is of.
    """
    segments = [(Segment(2, 3, 16), 5), (Segment(3, 2, 8), 3), (Segment(2, 4, 6), 0)]
    plans = PassPlans(TABLE, PassSchedule.over(FILES, TABLE.per_pass, 11, 1, segments), rank)
    assert described(plans(part)) == RUN[part, rank]


def test_a_permutation():
    order = permutation(6, 5, 1)
    assert order.tolist() == [1, 5, 4, 2, 0, 3] and order.dtype == np.int64


def test_the_last_two_plans_of_a_table_are_kept():
    plans = PassPlans(
        TABLE, PassSchedule.over(FILES, TABLE.per_pass, 11, 1, [(Segment(2, 3, 4), 0)]), 1
    )
    first = [plans(part) for part in (0, 1, 2)]
    assert plans(2) is first[2] and plans(1) is first[1] and plans(2) is first[2]
    assert TABLE.digest() == "6d19f30945546308", "saved positions name it"


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
