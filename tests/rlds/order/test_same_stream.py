"""Which windows come in which order, recorded from the engine that was a graph of TensorFlow's."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from robomimic_ddp.data.rlds.loaders.make import make_loader

RECORDED = {  # (ranks, rank): 25 batches, 9 more after a resume, validation
    (2, 0): ("190f2cc05bb7", "8a66f5cfbee2", "777499b82060"),
    (3, 2): ("87cdeb2ba636", "2fb47292f596", "982033c7c42f"),
}
OTHER_RANKS = "6cba59d0b14d"
"""Of (2, 0) after 25 batches on rank 2 of 5, with batches of 3."""
MIXTURE = ("7c61095f3f38", "021606f83826")
"""Of rank 1 of 2: 20 batches, 9 more after a resume."""


def digest(batches) -> str:
    """Of the windows and instructions of `batches`."""
    total = hashlib.sha256()
    for batch in batches:
        total.update(batch["index"].numpy().tobytes())
        total.update(repr(batch["language"]).encode())
    return total.hexdigest()[:12]


def some(loader, count):
    """The next `count` batches, pass after pass."""
    passes = itertools.chain.from_iterable(itertools.repeat(loader))
    return itertools.islice(passes, count)


@pytest.mark.parametrize(("world", "rank"), RECORDED)
def test_the_order_is_the_graphs(load, world, rank):
    train, valid = load(
        experiment={"validate": True}, validation_fraction=0.3, shuffle_buffer_size=30
    )
    loader = make_loader(train, 4, rank, world, 7)
    plain = digest(some(loader, 25))
    resumed = make_loader(train, 4, rank, world, 7)
    resumed.seek(loader.position(), world, 1)
    validation = digest(make_loader(valid, 4, rank, world, 7))
    assert (plain, digest(some(resumed, 9)), validation) == RECORDED[world, rank]
    if (world, rank) == (2, 0):
        changed = make_loader(train, 3, 2, 5, 7)
        changed.seek(loader.position(), world, 1)
        assert digest(some(changed, 9)) == OTHER_RANKS


def test_a_mixtures_order_is_the_graphs(load, stored):
    name = stored.folder.parent.name
    weights = {"dataset_names": [name] * 2, "sample_weights": [1.0, 3.0]}
    mixture, _ = load(**weights, shuffle_buffer_size=20)
    loader = make_loader(mixture, 8, 1, 2, 7)
    plain = digest(some(loader, 20))
    resumed = make_loader(mixture, 8, 1, 2, 7)
    resumed.seek(loader.position(), 2, 1)
    assert (plain, digest(some(resumed, 9))) == MIXTURE
