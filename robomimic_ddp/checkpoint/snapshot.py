"""States are copied to host memory at one moment, and written by a thread while training continues.

Training waits for the copy alone. Memory is bounded: of all moments at most two are in memory, the
one that is being written and the one that waits.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robomimic_ddp.distributed import watchdog

EXIT_SECONDS = 10.0
"""How long a process that must end waits for its files: launchers kill it after 30 s."""
_MOMENTS = 2


class Buffers:
    """Host memory that is used again: fresh memory costs several times as much as the copy."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, bool], list[torch.Tensor]] = {}

    def take(self, size: int, pinned: bool) -> torch.Tensor:
        """Return `size` bytes; `pinned`, for what comes from a GPU, makes their copy fast."""
        free = self._free.get((size, pinned))
        return free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def give_back(self, buffer: torch.Tensor, pinned: bool) -> None:
        """Let another snapshot use `buffer`."""
        self._free.setdefault((len(buffer), pinned), []).append(buffer)


class Snapshot:
    """Copies of nested states, as they are at one moment.

    As torch.save does, it takes whole storages, and each once: tensors that share memory share it
    in the copy, and two files of the same moment have one copy. A tensor that torch has seen
    changed since (its version) is copied again.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._copies: dict[tuple, torch.Tensor] = {}
        self._sources: list[torch.UntypedStorage] = []
        """Kept, since the memory of a freed one could become another tensor's."""
        self._devices: set[torch.device] = set()
        self.users = 0

    def copy(self, nest: Any) -> Any:
        """Return the copy of `nest`, complete: dictionaries and lists of their class, tensors on
        the CPU, other values as deepcopy makes them.
        """
        copied = self._copied(nest)
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()
        return copied

    def free(self) -> None:
        """Give the memory back; the copies must not be used any more."""
        for (*_, device, _), buffer in self._copies.items():
            self._buffers.give_back(buffer, pinned=device.type == "cuda")
        self._copies.clear()
        self._sources.clear()

    def _copied(self, value: Any) -> Any:
        if type(value) in (torch.Tensor, nn.Parameter):
            return self._tensor(value)
        if type(value) in (list, tuple):
            return type(value)(self._copied(member) for member in value)
        if type(value) in (dict, OrderedDict):
            mapping = value.copy()
            if type(value) is OrderedDict:
                vars(mapping).update(vars(value))  # a state_dict's _metadata
            mapping.update((key, self._copied(member)) for key, member in value.items())
            return mapping
        return copy.deepcopy(value)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        is_plain = value.layout == torch.strided and not (value.is_quantized or value.is_conj())
        if not is_plain or value.is_neg() or value.device.type not in ("cpu", "cuda"):
            return value.detach().clone().cpu()
        memory = self._memory(value).untyped_storage()
        view = torch.empty(0, dtype=value.dtype)
        view.set_(memory, value.storage_offset(), value.size(), value.stride())
        if isinstance(value, nn.Parameter):
            return nn.Parameter(view, value.requires_grad)
        return view.requires_grad_(value.requires_grad)

    def _memory(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        version = object() if value.is_inference() else value._version
        key = (storage.data_ptr(), storage.nbytes(), value.device, version)
        if key not in self._copies:
            source = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            target = self._buffers.take(len(source), source.is_cuda)
            self._copies[key] = target.copy_(source, non_blocking=True)
            self._sources.append(storage)
            if source.is_cuda:
                self._devices.add(value.device)
        return self._copies[key]


@dataclass
class _Job:
    name: str
    steps: list[Callable[[], None]]
    failed: Callable[[BaseException], None]
    snapshot: Snapshot | None = None
    held: bool = False
    must_be_written: bool = False


class Writer:
    """Main rank: one thread that writes snapshots, in order. On other ranks it has nothing to do.

    A job that waits is replaced by a newer one of its name, unless it `must_be_written`: one of
    its steps makes a file that no later job makes. A job that is `held` begins when the
    moment is over (`release`), after those that are not. An error of a job goes to its `failed`, in
    the thread.
    """

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._present: Snapshot | None = None
        self._live = 0
        self._jobs: list[_Job] = []
        self._current: _Job | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def copy(self, name: str, nest: Any) -> Any:
        """Return a copy of `nest` as it is now, for the file `name`. Waits where two earlier
        moments are in memory; what waits under `name` is withdrawn first.
        """
        with self._changed:
            for job in [job for job in self._jobs if job.name == name and not job.must_be_written]:
                self._jobs.remove(job)
                self._done_with(job)
            if self._present is None:
                with watchdog.saving("earlier files"):
                    self._changed.wait_for(lambda: self._live < _MOMENTS)
                self._present, self._live = Snapshot(self._buffers), self._live + 1
            snapshot = self._present
        return snapshot.copy(nest)

    def put(
        self,
        name: str,
        write: Callable[[], None],
        failed: Callable[[BaseException], None],
        held: bool = False,
    ) -> None:
        """Queue `write`, which uses copies of the present moment."""
        with self._changed:
            job = _Job(name, [write], failed, self._present, held)
            if job.snapshot is not None:
                job.snapshot.users += 1
            self._jobs.append(job)
            self._changed.notify_all()
        self._begin()

    def also(self, name: str, step: Callable[[], None], keep: bool = False) -> bool:
        """Add `step` to the job `name` if that is held; return whether it is."""
        with self._changed:
            for job in self._jobs:
                if job.name == name and job.held:
                    job.steps.append(step)
                    job.must_be_written |= keep
                    return True
        return False

    def release(self) -> None:
        """End the moment: what changes from now on is copied again, and held jobs begin."""
        with self._changed:
            self._jobs.sort(key=lambda job: job.held)
            for job in self._jobs:
                job.held = False
            snapshot, self._present = self._present, None
            self._free_unused(snapshot)
            self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is written, or for `timeout` seconds; return whether it is."""
        self.release()
        with watchdog.saving("the last files"), self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._current, timeout)

    def close(self) -> None:
        """Write what waits, for a while, and end the thread."""
        self.flush(EXIT_SECONDS)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _begin(self) -> None:
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process.
            self._thread = threading.Thread(
                target=self._work, name="robomimic-ddp-writer", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                job = self._current = self._next()
                if job is None:
                    return
                self._jobs.remove(job)
            self._run(job)
            with self._changed:
                self._current = None
                self._done_with(job)
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        return next((job for job in self._jobs if not job.held), None)

    def _run(self, job: _Job) -> None:
        try:
            for step in job.steps:
                step()
        except BaseException as error:  # a thread that ended would leave its jobs to wait
            with suppress(Exception):
                job.failed(error)

    def _done_with(self, job: _Job) -> None:
        job.steps.clear()
        if job.snapshot is not None:
            job.snapshot.users -= 1
            self._free_unused(job.snapshot)

    def _free_unused(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None and not snapshot.users and snapshot is not self._present:
            snapshot.free()
            self._live -= 1
