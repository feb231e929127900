"""The process group's life, and the collectives that the rest of the package uses.

torch.distributed holds the only state. Every function works without a process group: it then
describes one rank, and each collective is the identity. Objects and CPU tensors travel over gloo,
CUDA tensors over NCCL (one group, backend "cpu:gloo,cuda:nccl"), so that a decision or a log never
waits inside NCCL.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp import places
from robomimic_ddp.errors import LaunchError

logger = logging.getLogger(__name__)

_HEAD = 1024
"""Bytes of the first message of `gather_objects`."""


def is_initialized() -> bool:
    """Whether this process belongs to a process group of any size."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Global rank of this process; 0 without a process group."""
    return dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    """Number of ranks over all nodes; 1 without a process group."""
    return dist.get_world_size() if is_initialized() else 1


def is_main() -> bool:
    """Whether this is rank 0, the one that logs, saves and prompts."""
    return rank() == 0


@contextmanager
def process_group(backend: str, timeout_seconds: float, **rendezvous: Any) -> Iterator[None]:
    """Collective: joins the launcher's process group, and leaves it on a clean exit.

    `rendezvous` goes to `init_process_group`; empty means the launcher's environment (MASTER_ADDR,
    ...), which is read and never written. A group that already exists is used and left alone. After
    an exception the group is *not* destroyed: the sockets close when the process ends, which is
    after the traceback has been recorded, so the failing rank is always the first that torchrun
    hears of.
    """
    if is_initialized():
        yield
        return
    logger.info("joining the process group (backend %s)", backend)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds), **rendezvous)
    except (RuntimeError, ValueError) as error:
        raise LaunchError(
            f"the process group could not be formed with backend {backend}: {error}\n"
            "Every rank must reach MASTER_ADDR:MASTER_PORT; check that all ranks were started and "
            "that no "
            "firewall or stale process holds the port."
        ) from error
    store = dist.distributed_c10d._get_default_store()
    with places.watched(store, rank(), world_size(), timeout_seconds):
        # After this, every rank has told where it is, so that none waits in the store for another.
        barrier()
        yield
    dist.destroy_process_group()


def barrier() -> None:
    """Collective: returns once every rank has called it."""
    if world_size() > 1:
        # A reduced CPU tensor: dist.barrier() would run over NCCL where there is one.
        dist.all_reduce(torch.zeros(1))


def broadcast_object(value: Any, source: int = 0) -> Any:
    """Collective: the picklable `value` of rank `source`, on every rank. Other ranks' values are
    ignored.
    """
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source, device=torch.device("cpu"))
    return box[0]


def gather_objects(value: Any, within: Any = None) -> list[Any]:
    """Collective: every rank's picklable `value`, in rank order, on every rank.

    Values below 1 kB take one message, larger ones two. `within`: a group made by
    `without_time_limit`, where the wait may be long.
    """
    if world_size() == 1:
        return [value]
    data = pickle.dumps(value)
    heads = _gather_bytes(len(data).to_bytes(8, "little") + data[: _HEAD - 8], _HEAD, within)
    sizes = [int.from_bytes(head[:8], "little") for head in heads]
    longest = max(sizes)
    parts = [head[8:] for head in heads]
    if longest > _HEAD - 8:
        rests = _gather_bytes(data[_HEAD - 8 :], longest - (_HEAD - 8), within)
        parts = [part + rest for part, rest in zip(parts, rests)]
    return [pickle.loads(part[:size]) for part, size in zip(parts, sizes)]


def _gather_bytes(data: bytes, size: int, within: Any) -> list[bytes]:
    """Collective: every rank's `data`, filled up to `size` bytes, which is equal on all ranks.

    all_gather_object picks the device of the group's default backend (CUDA beside NCCL), and always
    sends twice; tensors of bytes on the CPU keep it on gloo.
    """
    own = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
    gathered = [torch.empty(size, dtype=torch.uint8) for _ in range(world_size())]
    dist.all_gather(gathered, own, group=within)
    return [part.numpy().tobytes() for part in gathered]


@contextmanager
def without_time_limit() -> Iterator[Any]:
    """Collective: a gloo group of all ranks for `gather_objects(..., within=)`; None on one rank.

    In it a rank waits for the others as long as they live. It is formed at once, while all ranks
    are here, and dissolved on a clean exit.
    """
    if world_size() == 1:
        yield None
        return
    waiting = dist.new_group(backend="gloo", timeout=timedelta(days=365))
    yield waiting
    dist.destroy_process_group(waiting)


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """Collective: the elementwise sum of `tensor` over ranks, as a new tensor of the same shape and
    device.
    """
    total = tensor.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


def broadcast_tensors(tensors: list[torch.Tensor], source: int = 0) -> None:
    """Collective: overwrites each tensor in place with that of rank `source`. Shapes must agree on
    all ranks.
    """
    if world_size() == 1:
        return
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=source)
