"""What an algorithm has is looked for again, but in a block in which nothing changes."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from robomimic_ddp.distributed import host_objects


def test_a_proof_walks_once_and_the_next_one_sees_what_was_added():
    algo = SimpleNamespace(model=nn.Linear(1, 1))
    for _ in range(2):
        with host_objects.unchanged():
            first = host_objects.walk(algo)
            with host_objects.unchanged():
                assert host_objects.walk(algo) is first
            assert host_objects.walk(algo) is first
            assert host_objects.walk(SimpleNamespace()) == []
        algo.head = nn.Linear(1, 1)
        assert [name for name, _ in host_objects.walk(algo)] == ["model", "head"]
    assert [name for name, _ in first] == ["model", "head"]
