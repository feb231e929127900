"""scripts/bench/scale.py: the model at its limits, and the table that docs/performance.md shows."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from scripts.bench import scale
from scripts.bench.scale import Cluster, Link, Step
from tests.hosts import ROOT

STEP = Step(compute=0.02, batch=16, size=268e6, fixed=0.2, backward=0.5)
SLOW = Link("slow", 20e-6, 10e9)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("each", [0.001, 0.1])
@pytest.mark.parametrize("compute", [0.0, 0.02])
def test_sending_is_a_queue_played_through(count, each, compute):
    step = replace(STEP, compute=compute, size=(count - 0.5) * scale.BUCKET)
    window, end = 0.5 * compute, 0.0
    for number in range(1, count + 1):
        end = max(end, window * number / count) + each
    seconds = step.seconds(16, 8, lambda size, world: each)
    assert seconds == pytest.approx(compute + end - window)


def test_rings_are_for_few_gpus_and_trees_for_many_and_nodes_share_their_ports():
    assert SLOW.all_reduce(1e8, 4) == pytest.approx(2 * 3 * (20e-6 + 1e8 / 4 / 10e9))
    assert SLOW.all_reduce(1e6, 1024) == pytest.approx(20 * 20e-6 + 2 * 1e6 / 10e9)
    inside, between = Link("in", 0.0, 100.0), Link("out", 0.0, 10.0)
    one = Cluster("", inside, between, gpus=4, ports=1)
    assert one.all_reduce(400, 4) == pytest.approx(2 * 3 / 4 * 400 / 100)
    # 4 GPUs send 100 bytes each through a port of 10 bytes a second.
    assert one.all_reduce(400, 8) == pytest.approx(6 + 2 * 1 / 2 * 400 / 10)


def test_the_documented_tables_are_what_it_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale.py"])
    scale.main()
    out = capsys.readouterr().out
    text = (ROOT / "docs" / "performance.md").read_text()
    for cluster in scale.CLUSTERS:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {cluster.name}"))
        printed = [line for line in out.splitlines() if line.startswith(cluster.name)][-1]
        assert row.split("|")[2:-1] and row.replace("|", "").split() == printed.split()
