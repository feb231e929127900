"""Copies of a moment, and the thread that writes them: what training changes meanwhile, the order,
the memory, errors, a disk that hangs.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import background_writer
from robomimic_ddp.checkpoint.background_writer import Writer
from robomimic_ddp.checkpoint.snapshot import Buffers, Snapshot
from robomimic_ddp.training.step import fused_optimizers


@pytest.fixture
def writer():
    made = Writer()
    yield made
    made.close()


def nest():
    """What torch.save has to do with: shared memory, views, parameters, a state_dict's metadata."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    flat = torch.arange(24.0)
    return {
        "nets": net.state_dict(),
        "optimizers": [optimizer.state_dict(), None],
        "parameters": list(net.parameters()),
        "views": (flat[2:8], flat.view(4, 6).t(), flat),
        "others": {"half": torch.ones(3, dtype=torch.bfloat16), 3: torch.empty(0)},
        "plain": OrderedDict(best={"walk": -np.inf}, array=np.arange(3), text="a"),
    }


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def test_the_copy_has_the_bytes_of_the_original():
    content = nest()
    assert saved(Snapshot(Buffers()).copy(content)) == saved(content)


def test_nothing_that_changes_later_is_in_the_copy():
    content = nest()
    before, copied = saved(content), Snapshot(Buffers()).copy(content)
    with torch.no_grad():
        for parameter in content["parameters"]:
            parameter.add_(1)
        content["views"][2].zero_()
    content["plain"]["best"]["walk"] = 1.0
    content["plain"]["array"][0] = 9
    content["nets"].clear()
    assert saved(copied) == before


def test_two_files_of_a_moment_share_what_has_not_changed():
    first, second = torch.ones(5), torch.ones(5)
    moment = Snapshot(Buffers())
    early = moment.copy([first, second])
    second.add_(1)
    late = moment.copy({"a": first, "b": second})
    assert late["a"].data_ptr() == early[0].data_ptr()
    assert torch.equal(early[1], torch.ones(5)) and torch.equal(late["b"], second)


def test_a_later_file_has_what_was_written_through_data():
    """As averages are put into nets for a checkpoint, and taken out again. torch counts neither."""
    weights, moment = nn.Parameter(torch.zeros(5)), Snapshot(Buffers())
    copies = []
    for value in (0.0, 1.0, 0.0):
        weights.data.fill_(value)
        copies.append(moment.copy({"net": weights, "again": [weights]}))
    assert [copy["net"].tolist() for copy in copies] == [[value] * 5 for value in (0.0, 1.0, 0.0)]
    assert all(copy["again"][0].data_ptr() == copy["net"].data_ptr() for copy in copies)
    assert len({copy["net"].data_ptr() for copy in copies}) == 3


def test_a_later_file_has_a_fused_optimizers_step():
    """As after a checkpoint in the middle of an epoch."""
    net, moment = nn.Linear(3, 4), Snapshot(Buffers())
    plain = torch.optim.AdamW(net.parameters())
    optimizer = type(plain)(net.parameters(), fused=fused_optimizers._can_be_fused(plain))
    for _ in range(2):
        net(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        content = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        assert saved(moment.copy(content)) == saved(content)


def test_memory_of_a_tensor_that_was_freed_is_not_taken_for_the_next_ones():
    moment = Snapshot(Buffers())
    copies = [moment.copy(torch.full((1000,), float(value))) for value in range(50)]
    assert [copy[0].item() for copy in copies] == list(range(50))


class Files:
    """What was written, in order; a write waits while `gate` is shut."""

    def __init__(self, writer):
        self.writer, self.written, self.errors = writer, [], []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def put(self, name, tensor, **options):
        content = self.writer.copy(name, tensor)
        self.writer.put(name, lambda: self.write(name, content), self.errors.append, **options)
        return content.data_ptr()

    def write(self, name, content):
        self.begun.set()
        assert self.gate.wait(60)
        self.written.append((name, content.tolist()))


@pytest.fixture
def files(writer):
    return Files(writer)


def busy(files, tensor):
    """The thread writes the first moment, and does not come to its end."""
    files.gate.clear()
    files.put("first", tensor)
    files.writer.release()
    assert files.begun.wait(60)


def test_what_waits_is_replaced_and_training_goes_ahead(files):
    tensor = torch.zeros(2)
    busy(files, tensor)
    for _ in range(5):
        tensor.add_(1)
        files.put("state", tensor)
        files.writer.release()
    files.gate.set()
    assert files.writer.flush()
    assert files.written == [("first", [0.0, 0.0]), ("state", [5.0, 5.0])]


def test_held_files_come_after_the_others_of_their_moment(files):
    files.put("last", torch.zeros(1), deferred=True)
    copied = []
    assert files.writer.also("last", lambda: copied.append(list(files.written)))
    files.put("state", torch.ones(1))
    assert not files.writer.also("state", lambda: None) and not copied
    assert files.writer.flush()
    assert [name for name, _ in files.written] == ["state", "last"]
    assert copied == [files.written], "after the file that it copies"


def test_two_moments_are_in_memory_and_a_third_waits(files):
    tensor = torch.zeros(3)
    busy(files, tensor)
    files.put("second", tensor.add_(1))
    files.writer.release()
    waits = threading.Thread(target=lambda: files.put("third", tensor), daemon=True)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    files.gate.set()
    waits.join(60)
    assert not waits.is_alive() and files.writer.flush()
    assert [name for name, _ in files.written] == ["first", "second", "third"]


def test_memory_is_used_again(files):
    addresses = set()
    for value in range(6):
        addresses.add(files.put("state", torch.full((64,), float(value))))
        files.writer.flush()
    assert len(addresses) == 1 and len(files.written) == 6


@pytest.mark.parametrize("error", [OSError("full"), SystemExit(1)])
def test_an_error_is_told_and_the_next_file_written(files, error):
    files.writer.put("bad", mock.Mock(side_effect=error), files.errors.append)
    files.put("good", torch.zeros(1))
    assert files.writer.flush()
    assert files.errors == [error] and [name for name, _ in files.written] == ["good"]


def test_a_disk_that_hangs_keeps_no_process(files, monkeypatch):
    monkeypatch.setattr(background_writer, "EXIT_SECONDS", 0.1)
    busy(files, torch.zeros(1))
    assert not files.writer.flush(0.1)
    files.writer.close()
    assert files.writer._thread.daemon
    files.gate.set()
