"""The schedule over passes and changes of ranks: nothing lost, nothing twice, any place reached.

What the engine does with the plans is done here with a dict for the store.
"""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order.pass_order import pass_order
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.order.read_plan import BLOCK_WINDOWS, PassPlan

SEED = 11


class Tape:
    """What a rank delivers: the window numbers of batch after batch, through plans and a store."""

    def __init__(
        self, schedule: PassSchedule, windows: np.ndarray, rank: int, batches: int
    ) -> None:
        self.schedule, self.windows, self.rank = schedule, windows, rank
        self.start = schedule.position(rank, batches)
        self.read = 0
        """Windows in the records that were read before the first batch came."""
        self.most_held = 0
        self.rows = self._rows()

    def plan(self, part: int) -> PassPlan:
        share = self.schedule.share(part, self.rank)
        chosen, base = share.pieces.episode, np.cumsum(self.windows) - self.windows
        counts = self.windows[chosen]
        return PassPlan(
            share.pieces, chosen, chosen, counts, counts, counts * 0, base[chosen],
            share.shuffle, share.before,
        )  # fmt: skip

    def _rows(self):
        first, taken = self.start
        store: dict[int, int] = {}
        for part in itertools.count(first):
            plan, here = self.plan(part), taken if part == first else 0
            begin = plan.block_of(here) if here else 0
            for number in range(begin, plan.blocks):
                block = plan.block(number, here if number == begin else 0)
                yield from self._block(block, store)

    def _block(self, block, store):
        for row, record in enumerate(block.records):
            part = slice(block.stored[row], block.stored[row + 1])
            keys = block.keys[part].tolist()
            assert keys and not set(keys) & set(store), "a record is read in vain, or twice"
            store.update(zip(keys, (record[5] + block.numbers[part]).tolist()))
            self.most_held = max(self.most_held, len(store))
            self.read += int(record[2])
            for key, index in block.leaving[block.left[row] : block.left[row + 1]].tolist():
                assert store.pop(key) == index
                yield index
        assert block.left[0] == 0 and block.left[-1] == len(block.leaving)

    def take(self, batches: int) -> list[int]:
        return list(itertools.islice(self.rows, batches * self.schedule.segment.batch_size))


@st.composite
def runs(draw):
    """(files, windows, segments): each segment with the batches taken in it."""
    windows = np.array(draw(st.lists(st.integers(0, 30), min_size=2, max_size=25)))
    windows[0] += 8
    files = np.sort(np.array([draw(st.integers(0, 5)) for _ in windows]))
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        world = draw(st.integers(1, min(16, int(windows.sum()))))
        batch = draw(st.integers(1, int(windows.sum()) // world))
        steps = 2 * int(windows.sum()) // (world * batch)
        segment = Segment(world, batch, draw(st.sampled_from([1, 2, 5, 40])))
        segments.append((segment, draw(st.integers(0, steps))))
    return files, windows, segments


@settings(max_examples=30, deadline=None)
@given(runs())
def test_every_pass_is_exact_over_any_changes_of_ranks_and_batch(run):
    """What all ranks have delivered is whole passes, and of the last one no window twice."""
    files, windows, segments = run
    delivered: list[int] = []
    for number in range(len(segments)):
        schedule = PassSchedule.over(files, windows, SEED, 0, segments[: number + 1])
        for rank in range(schedule.segment.world_size):
            delivered += Tape(schedule, windows, rank, 0).take(segments[number][1])
    batches = segments[-1][1]
    steps = sum(segment.world_size * segment.batch_size * taken for segment, taken in segments)
    assert len(delivered) == steps
    times = np.bincount(delivered, minlength=windows.sum())
    present = schedule.first_pass + schedule.part_of(batches)
    # Every window was due once in each pass before; some of the present one have come.
    rest = Counted(schedule.remaining(batches), windows)
    assert (times + rest.times == present + 1).all()
    assert all((rest.of_pass(number) <= 1).all() for number in range(present + 1))
    assert not rest.of_pass(present + 1).any()
    assert (np.diff(rest.pieces.number) >= 0).all()
    for number in np.unique(rest.pieces.number):
        places = np.argsort(pass_order(files, SEED, int(number)))
        assert (np.diff(places[rest.pieces.episode[rest.pieces.number == number]]) >= 0).all()


class Counted:
    """How often each window is in a row of pieces."""

    def __init__(self, pieces, windows) -> None:
        self.pieces, self.base = pieces, np.cumsum(windows) - windows
        self.total = int(windows.sum())
        self.times = self._count(range(len(pieces.episode)))

    def of_pass(self, number: int) -> np.ndarray:
        return self._count(np.flatnonzero(self.pieces.number == number))

    def _count(self, rows) -> np.ndarray:
        times = np.zeros(self.total, int)
        for row in rows:
            base = self.base[self.pieces.episode[row]]
            times[base + self.pieces.start[row] : base + self.pieces.stop[row]] += 1
        return times


@settings(max_examples=30, deadline=None)
@given(runs(), st.data())
def test_a_place_is_reached_without_what_came_before(run, data):
    files, windows, segments = run
    segment, batches = segments[-1]
    schedule = PassSchedule.over(files, windows, SEED, 0, segments)
    rank = data.draw(st.integers(0, segment.world_size - 1))
    whole = Tape(schedule, windows, rank, 0).take(batches + 4)
    resumed = Tape(schedule, windows, rank, batches)
    assert resumed.take(4) == whole[batches * segment.batch_size :]


def test_all_ranks_are_given_as_many_batches_and_the_rest_of_a_pass_is_shared_evenly():
    windows = np.full(50, 10)
    first = PassSchedule(np.arange(50), windows, 0, Segment(4, 5, 8))
    second = first.followed_by(Segment(3, 4, 8), 13)  # 260 of 500 windows are delivered
    assert second.rest.windows == 240 and second.first_pass == 0
    assert second.batches_in(0) == 20 and second.batches_in(1) == (240 + 500) // 12 - 20
    sizes = [second.share(0, rank).pieces.windows for rank in range(3)]
    assert sizes == [80, 80, 80]
    small = PassSchedule(np.arange(2), np.full(2, 4), 0, Segment(1, 3, 1))
    assert [small.part_of(batches) for batches in range(6)] == [0, 0, 1, 1, 1, 2]


LONG = np.full(2_000, 50)


def test_resuming_reads_at_most_twice_the_shuffle_buffer():
    schedule = PassSchedule(np.repeat(np.arange(100), 20), LONG, 0, Segment(2, 25, 1_000))
    for batches in (1, 700, 1_999, 3_333):
        tape = Tape(schedule, LONG, 1, batches)
        tape.take(1)
        # Both ends of the stretch are inside a record.
        assert tape.read <= 2 * 1_000 + 2 * 50, batches


def test_other_ranks_read_each_record_of_the_rest_once():
    """The buffers of the ranks before held windows from all over an episode."""
    files = np.repeat(np.arange(100), 20)
    before = PassSchedule(files, LONG, 0, Segment(2, 25, 10_000))
    after = before.followed_by(Segment(3, 25, 1_000), 700)
    assert len(after.rest.episode) > 2 * len(np.unique(after.rest.episode)), "no holes: no test"
    read = []
    for rank in range(3):
        tape = Tape(after, LONG, rank, 0)
        plan = tape.plan(0)
        blocks = [plan.block(number) for number in range(plan.blocks)]
        records = np.concatenate([block.records[:, 0] for block in blocks])
        assert len(records) <= len(np.unique(records)) + plan.blocks - 1
        assert plan.pieces.windows == sum(len(block.leaving) for block in blocks)
        read += np.unique(records).tolist()
    assert len(read) <= len(np.unique(after.rest.episode)) + 2  # ranks share one at each cut


def test_memory_is_that_of_the_shuffle_buffer():
    schedule = PassSchedule(np.repeat(np.arange(100), 20), LONG, 0, Segment(2, 25, 1_000))
    for batches in (0, 1_000):
        tape = Tape(schedule, LONG, 0, batches)
        tape.take(3_000)
        assert tape.most_held < 1_000 * 1.1 + 50


def test_a_long_part_is_planned_a_block_at_a_time():
    schedule = PassSchedule(np.repeat(np.arange(100), 20), LONG, 0, Segment(2, 25, 1_000))
    plan = Tape(schedule, LONG, 0, 0).plan(0)
    windows = np.diff(plan.pieces.begins[plan.cuts[:-1]])
    assert abs(windows - BLOCK_WINDOWS).max() <= LONG.max() and plan.blocks > 3


def test_a_thousand_ranks_and_back_are_cheap():
    windows = np.full(76_000 // 8, 30)
    files = np.repeat(np.arange(len(windows) // 10), 10)
    segments = [
        (Segment(1024, 4, 12), 30),
        (Segment(8, 64, 1_000), 100),
        (Segment(1023, 4, 12), 20),
    ]
    schedule = PassSchedule.over(files, windows, 3, 0, [*segments, (Segment(2, 128, 5_000), 0)])
    left = schedule.rest
    taken = sum(segment.world_size * segment.batch_size * batches for segment, batches in segments)
    assert left.windows == windows.sum() - taken
    assert (Counted(left, windows).times <= 1).all()


def test_a_whole_droid_pass_is_planned_in_little_time_and_memory():
    """76,000 episodes of 300 windows on one rank: a block at a time, never the whole order."""
    windows = np.full(76_000, 300)
    schedule = PassSchedule(np.repeat(np.arange(1_900), 40), windows, 0, Segment(8, 128, 12_500))
    tape = Tape(schedule, windows, 3, 10_000)
    plan = tape.plan(0)
    first = plan.block(plan.block_of(1_280_000), 1_280_000)
    assert len(first.leaving) <= 25_000 + 300 and first.records[:, 2].sum() <= 3 * 25_000 + 600
    assert len(set(tape.take(20))) == 20 * 128
