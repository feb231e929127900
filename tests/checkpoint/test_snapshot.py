"""Copies of states, and the thread that writes them: what training changes meanwhile, the order,
the memory, errors, a disk that hangs.
"""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import background_writer
from robomimic_ddp.checkpoint.background_writer import Writer
from robomimic_ddp.checkpoint.snapshot import Buffers, Snapshot


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


def test_the_copy_has_the_bytes_of_the_original_before_it_changed():
    content = nest()
    before, snapshot = saved(content), Snapshot(content, Buffers())
    with torch.no_grad():
        for parameter in content["parameters"]:
            parameter.add_(1)
        content["views"][2].zero_()
    content["plain"]["best"]["walk"] = 1.0
    content["plain"]["array"][0] = 9
    content["nets"].clear()
    assert saved(snapshot.content) == before


class Files:
    """What was written, in order; a write waits while `gate` is shut."""

    def __init__(self, writer):
        self.writer, self.written, self.errors = writer, [], []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def put(self, name, tensor, **options):
        snapshot = self.writer.copy(name, tensor)
        write = partial(self.write, name, snapshot.content)
        self.writer.put(name, write, self.errors.append, snapshot, **options)
        return snapshot.content.data_ptr()

    def write(self, name, content):
        self.begun.set()
        assert self.gate.wait(60)
        self.written.append((name, content.tolist()))


@pytest.fixture
def files(writer):
    return Files(writer)


def busy(files, tensor):
    """The thread writes the first file, and does not come to its end."""
    files.gate.clear()
    files.put("first", tensor)
    files.writer.begin()
    assert files.begun.wait(60)


def test_what_waits_is_replaced_and_training_goes_ahead(files):
    tensor = torch.zeros(2)
    busy(files, tensor)
    for _ in range(5):
        tensor.add_(1)
        files.put("state", tensor)
        files.writer.begin()
    files.gate.set()
    assert files.writer.flush()
    assert files.written == [("first", [0.0, 0.0]), ("state", [5.0, 5.0])]


def test_training_waits_where_too_many_files_do(files):
    tensor = torch.zeros(3)
    busy(files, tensor)
    names = ["state", "last", "models/1", "models/2"]
    for name in names[:3]:
        files.put(name, tensor)
    waits = threading.Thread(target=lambda: files.put(names[3], tensor), daemon=True)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    files.gate.set()
    waits.join(60)
    assert not waits.is_alive() and files.writer.flush()
    assert [name for name, _ in files.written] == ["first", *names]


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


def test_a_closed_writer_frees_nothing_later(writer):
    """Its thread would free tensors while Python ends, and Python would abort the process."""
    freed = []

    class Content:
        def __del__(self):
            time.sleep(0.3)
            freed.append(self)

    def put():
        content = Content()
        writer.put("state", lambda: repr(content), freed.append)

    put()
    writer.close()
    assert len(freed) == 1
    assert not writer._thread.is_alive()


def test_a_disk_that_hangs_keeps_no_process(files, monkeypatch):
    monkeypatch.setattr(background_writer, "EXIT_SECONDS", 0.1)
    busy(files, torch.zeros(1))
    assert not files.writer.flush(0.1)
    files.writer.close()
    assert files.writer._thread.daemon
    files.gate.set()
