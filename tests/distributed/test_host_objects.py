"""What an algorithm has is looked for again, but in a block in which nothing changes."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from robomimic_ddp.distributed import host_algo, host_objects


def test_a_proof_walks_once_and_the_next_one_sees_what_was_added():
    algo = SimpleNamespace(model=nn.Linear(1, 1))
    for _ in range(2):
        with host_objects.unchanged():
            first = host_objects.walk(algo)
            with host_objects.unchanged():
                assert host_objects.walk(algo) is first
            assert host_objects.walk(algo) is first
            assert host_objects.walk(SimpleNamespace()) == []
            modules = host_algo.named_modules(algo)
            assert host_algo.named_modules(algo) is modules
        algo.head = nn.Linear(1, 1)
        for find in (host_objects.walk, host_algo.named_modules):
            assert [name for name, _ in find(algo)] == ["model", "head"]
    assert [name for name, _ in first] == ["model", "head"]
