"""The model of `bench scale` at its limits: arithmetic, no process and no clock."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.bench import links, model
from robomimic_ddp.bench.model import Link, Step

STEP = Step(per_sample=0.001, fixed=0.004, backward_share=0.6, size=268e6)
FREE = Link("free", 0.0, math.inf)
SLOW = Link("slow", 20e-6, 10e9)
worlds = st.integers(2, 1024)


def over(link, reduce=model.ring):
    return partial(reduce, link)


@given(worlds, st.sampled_from([model.ring, model.tree, model.best]))
def test_a_link_that_costs_nothing_gives_an_efficiency_of_one(world, reduce):
    assert model.weak(STEP, 16, world, over(FREE, reduce)) == 1
    ideal = replace(STEP, fixed=0.0)
    assert model.strong(ideal, 1024, world, over(FREE, reduce)) == pytest.approx(1)


def test_what_a_batch_does_not_shorten_bounds_strong_scaling():
    """Amdahl: with a free link only `fixed` is left."""
    found = model.strong(STEP, 1024, 256, over(FREE))
    assert found == pytest.approx((0.004 + 1.024) / (256 * (0.004 + 0.004)))
    assert model.strong(STEP, 1024, 1025, over(FREE)) is None


@given(worlds, st.floats(0, 1e10))
def test_without_overlap_all_sending_is_added(world, size):
    step = replace(STEP, size=size, overlap=0.0)
    buckets = max(1, math.ceil(size / step.bucket))
    sending = buckets * model.ring(SLOW, size / buckets, world)
    assert step.seconds(16, world, over(SLOW)) == pytest.approx(step.compute(16) + sending)


@given(worlds)
def test_overlap_hides_all_but_the_last_bucket_at_most(world):
    step = replace(STEP, per_sample=1e3, size=STEP.size)
    buckets = math.ceil(step.size / step.bucket)
    last = model.ring(SLOW, step.size / buckets, world)
    more = step.seconds(16, world, over(SLOW)) - step.compute(16)
    assert more == pytest.approx(last, rel=1e-3)


def test_exposed_time_is_that_of_a_queue_played_through():
    """The closed form against buckets sent one after the other."""
    for buckets in (1, 2, 5, 11):
        for each in (0.001, 0.01, 0.1, 1.0):
            for window in (0.0, 0.02, 0.5, 3.0):
                end = 0.0
                for number in range(1, buckets + 1):
                    end = max(end, window * number / buckets) + each
                assert model.exposed(buckets, each, window) == pytest.approx(end - window)


def test_efficiency_falls_with_ranks_and_size_and_rises_with_bandwidth_and_overlap():
    for reduce in (model.ring, model.tree, model.best):
        link = over(SLOW, reduce)
        found = [model.weak(STEP, 16, world, link) for world in model.WORLDS]
        assert found == sorted(found, reverse=True) and 0 < found[-1] < found[0] < 1
        shared = [model.strong(STEP, 1024, world, link) for world in model.WORLDS]
        assert shared == sorted(shared, reverse=True)
    quicker = [over(Link("", 20e-6, speed)) for speed in (1e9, 1e10, 1e11, 1e12)]
    rising = [model.weak(STEP, 16, 64, link) for link in quicker]
    assert rising == sorted(rising) and rising[0] < rising[-1]
    hidden = [
        model.weak(replace(STEP, overlap=share), 16, 64, over(SLOW)) for share in (0, 0.3, 0.7, 1)
    ]
    assert hidden == sorted(hidden) and hidden[0] < hidden[-1]
    heavier = [model.weak(replace(STEP, size=n), 16, 64, over(SLOW)) for n in (1e6, 1e8, 1e9)]
    assert heavier == sorted(heavier, reverse=True)


def test_rings_are_for_few_ranks_and_large_messages_trees_for_many():
    assert model.ring(SLOW, 1e8, 4) < model.tree(SLOW, 1e8, 4)
    assert model.tree(SLOW, 1e6, 1024) < model.ring(SLOW, 1e6, 1024)
    quicker = [model.ring(SLOW, 25e6, world) < model.tree(SLOW, 25e6, world) for world in
               range(2, 1025)]  # fmt: skip
    crossing = quicker.index(False) + 2
    # 2 (p - 1) a + 2 n (p - 1) / p b = 2 log2(p) a + 2 n / b
    left = (crossing - 1 - math.ceil(math.log2(crossing))) * SLOW.latency
    assert left >= 25e6 / crossing / SLOW.bandwidth
    assert not any(quicker[crossing - 2 :]) and 8 < crossing < 64
    for world in (2, 16, 1024):
        assert model.best(SLOW, 25e6, world) == min(
            model.ring(SLOW, 25e6, world), model.tree(SLOW, 25e6, world)
        )
        assert model.ring(SLOW, 1e9, 1) == model.tree(SLOW, 1e9, 1) == 0


def test_a_fit_gives_back_the_link_that_made_the_times():
    sizes = (65536.0, 16e6)
    for world in (2, 3, 4, 1024):
        found = model.fitted(sizes, tuple(model.ring(SLOW, n, world) for n in sizes), world, "g")
        assert found.latency == pytest.approx(SLOW.latency)
        assert found.bandwidth == pytest.approx(SLOW.bandwidth)
    noise = model.fitted(sizes, (0.02, 0.01), 2, "noise")
    assert noise.latency >= 0 and 0 < noise.bandwidth < math.inf


def test_nodes_share_their_ports():
    inside, between = Link("in", 0.0, 100.0), Link("out", 0.0, 10.0)
    one = model.Cluster("", inside, between, gpus_per_node=4, ports=1)
    assert one.all_reduce(400, 4, "ring") == pytest.approx(2 * 3 / 4 * 400 / 100)
    # 4 GPUs send 100 bytes each through a port of 10 bytes a second.
    assert one.all_reduce(400, 8, "ring") == pytest.approx(6 + 2 * 1 / 2 * 400 / 10)
    four = replace(one, ports=4)
    assert four.all_reduce(400, 8, "ring") == pytest.approx(6 + 2 * 1 / 2 * 100 / 10)
    flat = links.CLUSTERS["ethernet"]
    assert flat.all_reduce(1e8, 64, "tree") == model.tree(links.ETHERNET, 1e8, 64)


@pytest.mark.parametrize("cluster", links.CLUSTERS.values(), ids=list(links.CLUSTERS))
def test_every_preset_states_its_source(cluster):
    for link in (cluster.inside, cluster.between):
        assert link.source.startswith("assumed: ") and 0 < link.latency < 1e-3 < link.bandwidth
    times = [cluster.all_reduce(268e6, world) for world in model.WORLDS]
    assert times == sorted(times)


def test_the_least_compute_gives_the_efficiency_asked_for():
    link = over(SLOW)
    least = model.least_compute(STEP, 16, 256, link)
    factor = least / STEP.compute(16)
    scaled = replace(STEP, per_sample=STEP.per_sample * factor, fixed=STEP.fixed * factor)
    assert model.weak(scaled, 16, 256, link) == pytest.approx(0.9, rel=1e-6)
