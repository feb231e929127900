"""Batches that are read one ahead: their order, their ends, their errors."""

from __future__ import annotations

import threading

import pytest
import torch

from robomimic_ddp.data.rlds.loaders import base
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.loaders.prefetch import MOVED, Prefetcher, moved
from robomimic_ddp.data.rlds.loaders.remote import Delivered
from robomimic_ddp.data.rlds.pipeline.shared import OBS


class Clock:
    """Stands for `time`: it passes only while somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Counted(base.RLDSLoader):
    """A loader with two frames decoded for a batch that is complete after `complete_at`."""

    def __init__(self, clock, complete_at):
        self.clock, self.complete_at = clock, complete_at
        self.frames_delivered = 3

    frames_decoded = 7

    @property
    def frames_prefetched(self):
        return 4 if self.clock.now >= self.complete_at else 2


@pytest.mark.parametrize(
    ("complete_at", "until", "prefetched"), [(0, 0, 4), (1, 1, 4), (99, 10, 2)]
)
def test_counts_are_of_complete_batches_or_of_ten_seconds_later(
    complete_at, until, prefetched, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr(base, "time", clock)
    counts = Counted(clock, 100 + complete_at).settled_frames()
    assert clock.now == pytest.approx(100 + until, abs=0.2)
    assert counts == {
        "frames_decoded": 7 - prefetched,
        "frames_delivered": 3,
        "frames_prefetched": prefetched,
    }


class Recorder:
    """Batches 0, 1, ... up to `count`, and what happened to them."""

    def __init__(self, count):
        self.numbers = iter(range(count))
        self.read = []
        self.may_read = threading.Event()
        self.may_read.set()

    def __next__(self):
        number = next(self.numbers)
        if number == 3:
            raise ValueError("damaged")
        self.read.append(number)
        return number


def sent(number):
    return number * 10


def test_the_next_batch_is_read_while_one_is_held():
    ahead, batches = Prefetcher(sent), Recorder(3)
    assert ahead.next_of(batches) == 0
    ahead._coming.result()
    assert batches.read == [0, 1], "one ahead, and no more"
    assert [ahead.next_of(batches), ahead.next_of(batches)] == [10, 20]
    with pytest.raises(StopIteration):
        ahead.next_of(batches)


def test_an_error_is_raised_where_its_batch_is_asked_for():
    ahead, batches = Prefetcher(sent), Recorder(9)
    assert [ahead.next_of(batches) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(ValueError, match="damaged"):
        ahead.next_of(batches)
    assert ahead.next_of(batches) == 40


def test_another_iterator_starts_over():
    ahead, one, two = Prefetcher(sent), Recorder(9), Recorder(2)
    assert ahead.next_of(one) == 0
    assert ahead.next_of(two) == 0 and ahead.next_of(two) == 10


def test_a_loader_that_reads_ahead_delivers_the_same(load):
    """Order, positions and counts are those of the batches that were handed out."""
    from robomimic_ddp.data.rlds.loaders.base import to_torch

    train, _ = load()
    plain, ahead = (make_loader(train, 4, 1, 2, 5) for _ in range(2))
    ahead._ahead = Prefetcher(to_torch)
    for one, other in zip(plain, ahead):
        assert torch.equal(one["index"], other["index"])
        assert all(torch.equal(one["obs"][key], other["obs"][key]) for key in one["obs"])
        assert plain.position() == ahead.position()
        assert plain.frames_delivered == ahead.frames_delivered
    assert len(ahead) == len(plain)
    resumed = make_loader(train, 4, 1, 2, 5)
    resumed._ahead = Prefetcher(to_torch)
    resumed.seek(ahead.position(), 2, 1)
    assert torch.equal(next(iter(resumed))["index"], next(iter(plain))["index"])
    counts = ahead.settled_frames()
    assert counts["frames_decoded"] == counts["frames_delivered"]


def test_tensors_share_the_memory_of_the_batch(load):
    from robomimic_ddp.data.rlds.loaders.base import to_torch

    train, _ = load()
    raw = next(make_loader(train, 4, 1, 2, 5)._open())
    batch = to_torch(raw)
    tensors = {**batch, **{OBS + key: value for key, value in batch["obs"].items()}}
    for name, array in raw.arrays.items():
        assert tensors[name].numpy().ctypes.data == array.ctypes.data and array.flags.writeable


@pytest.mark.parametrize("named", ["cuda", "cuda:1"])
def test_a_loader_for_a_device_reads_ahead_and_sends_each_batch_there(named, load, monkeypatch):
    """Without a GPU: what is asked of CUDA is noted. A new thread's device is the first, where each
    rank would open a context.
    """
    train, _ = load()
    device, bound, sent_to = torch.device("cuda", 1), [], []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda to: bound.append((threading.current_thread().name, to))
    )
    monkeypatch.setattr(base, "moved", lambda batch, to: sent_to.append(to) or batch)
    plain, ahead = make_loader(train, 4, 0, 1, 0), make_loader(train, 4, 0, 1, 0, device=named)
    batches = list(zip(plain, ahead))
    for one, other in batches:
        assert torch.equal(one["index"], other["index"])
        assert torch.equal(one["actions"], other["actions"])
    assert bound == [("rlds-ahead_0", device)] and sent_to == [device] * len(batches)


def test_bytes_that_are_no_text_are_replaced_and_fill_bytes_are_cut_off():
    batch = base.to_torch(Delivered({}, [b"open \xff", b"lift\0\0"]))
    assert batch["language"] == ["open \ufffd", "lift"]


@pytest.mark.parametrize("pin_memory", [True, False])
def test_all_tensors_are_pinned_or_none(load, monkeypatch, pin_memory):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(id(self)) or self)
    for dataset in load(experiment={"validate": True}):
        batch = next(iter(make_loader(dataset, 4, 0, 1, 0, pin_memory=pin_memory)))
        tensors = [one for one in (*batch.values(), *batch["obs"].values()) if torch.is_tensor(one)]
        assert len(tensors) > 5
        assert [id(one) in pinned for one in tensors] == [pin_memory] * len(tensors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_on_a_gpu_batches_are_the_same(load):
    train, _ = load()
    host = make_loader(train, 4, 0, 1, 0)
    device = make_loader(train, 4, 0, 1, 0, device="cuda:0")
    for one, other in zip(host, device):
        assert other["actions"].is_cuda and not other["index"].is_cuda
        assert torch.equal(one["actions"], other["actions"].cpu())
        for key, value in one["obs"].items():
            assert other["obs"][key].is_cuda and torch.equal(value, other["obs"][key].cpu())


def test_what_training_reads_is_moved_and_nothing_else():
    raw = {key: {"a": torch.ones(2)} if key == "obs" else torch.ones(2) for key in MOVED}
    batch = moved({**raw, "index": torch.ones(2), "language": ["x"]}, torch.device("meta"))
    assert batch["obs"]["a"].is_meta and batch["actions"].is_meta and batch["pad_mask"].is_meta
    assert not batch["index"].is_meta and batch["language"] == ["x"]
    assert not raw["obs"]["a"].is_meta, "the loader's own batch is left alone"
