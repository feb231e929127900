"""The process that reads for a rank: what it loads, and what happens when it or the rank ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.data.rlds.loaders import remote
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline.shared import Memory, attach, place, views
from robomimic_ddp.errors import DataError
from tests.rlds.loading import stream

ROOT = Path(__file__).resolve().parents[3]
TRAINS = """
import os, signal, sys
from pathlib import Path
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.loaders.remote import reader_of_rank
from tests.rlds.quick import quick_dataset

loader = make_loader(quick_dataset(Path(sys.argv[1]), sys.argv[2]), 2, 0, 1, 0)
batch = next(iter(loader))
reader = reader_of_rank().pid
print(reader, sorted({"tensorflow", "numba"} & {*sys.modules}), flush=True)
maps = Path(f"/proc/{reader}/maps").read_text()
print([name for name in ("tensorflow", "libtorch", "simplejpeg") if name in maps], flush=True)
os.kill(reader, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_there(pid: int) -> bool:
    """Whether a process runs, which may still end within some seconds."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return False
        time.sleep(0.1)
    return Path(f"/proc/{pid}").exists()


def test_a_stopped_reader_ends_with_its_killed_rank_and_neither_needs_tensorflow(stored, tmp_path):
    """With the packages of this environment without it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for place_of_one in Path(np.__file__).parents[1].iterdir():
        if not place_of_one.name.startswith(("tensorflow_cpu", "tensorflow-")):
            (packages / place_of_one.name).symlink_to(place_of_one)
    (packages / "tensorflow").unlink()
    done = subprocess.run(
        # -S: without the folder that has it
        [sys.executable, "-S", "-c", TRAINS, str(stored.folder), str(tmp_path / "index")],
        cwd=ROOT, capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"note: 4 of the 14 episodes of {stored.folder} are left out. 2: "), line
    first, second = done.stdout.splitlines()
    pid, _, modules = first.partition(" ")
    assert (modules, second) == ("[]", "['simplejpeg']")
    assert not is_there(int(pid))


def test_a_process_that_is_killed_is_one_clear_error(load):
    train, _ = load()
    loader = make_loader(train, 4, 0, 1, 5)
    assert len(stream(loader, 2)) == 8
    os.kill(remote.reader_of_rank().pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"was killed by SIGKILL.*lack of memory"):
        stream(loader, 10)
    loader.close()
    assert len(stream(make_loader(train, 4, 0, 1, 5), 2)) == 8, "the next one starts another"


def test_no_memory_for_a_batch_is_one_clear_error(load):
    """Never a bus error: the memory is claimed before it is written."""
    train, _ = load()
    loader = make_loader(train, 60, 0, 1, 5)  # larger than what other tests have left
    reader = remote.reader_of_rank()
    _, most = resource.prlimit(reader.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(reader.pid, resource.RLIMIT_FSIZE, (1024, most))
    try:
        with pytest.raises(DataError, match=r"reads data failed: OSError.*too large"):
            stream(loader, 2)
    finally:
        resource.prlimit(reader.pid, resource.RLIMIT_FSIZE, (most, most))


def test_two_threads_may_ask_at_once(load):
    train, _ = load(shuffle_buffer_size=20)
    loaders = [make_loader(train, 3, rank, 4, 5) for rank in range(4)]
    alone = [stream(loader, 12) for loader in loaders]
    loaders = [make_loader(train, 3, rank, 4, 5) for rank in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda loader: stream(loader, 12), loaders)] == alone


def test_warnings_to_the_rank_do_not_end_its_reader(load):
    train, _ = load()
    loader = make_loader(train, 4, 0, 1, 5)
    assert stream(loader, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(remote.reader_of_rank().pid, number)
    assert len(stream(loader, 5)) == 20


def test_memory_is_shared_and_outlives_its_maker():
    size, layout = place({"a": (np.uint8, (3, 5)), "b": (np.float32, (0, 2)), "c": (np.int64, ())})
    memory = Memory(size)
    made = views(memory.bytes, layout)
    made["a"][...] = 7
    made["c"][...] = -1
    theirs = views(attach(os.dup(memory.descriptor)), layout)
    del memory, made
    assert (theirs["a"] == 7).all() and theirs["c"] == -1 and theirs["b"].shape == (0, 2)
    assert all(array.ctypes.data % 64 == 0 for array in theirs.values())


def test_validations_that_are_left_early_use_the_same_memory(load):
    _, valid = load(experiment={"validate": True}, validation_fraction=0.5)
    loader, counts = make_loader(valid, 2, 0, 1, 5), []
    for _ in range(8):
        batches = iter(loader)
        next(batches)
        next(batches)  # which the memory of the first is read ahead into
        batches.close()
        counts.append(len(remote.reader_of_rank()._mapped))
    assert counts[-1] == counts[2]
