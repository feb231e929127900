"""The process group, and the collectives of the package.

Every function works without a process group: for one rank, where each collective is the identity.
Objects and CPU tensors are sent over gloo, CUDA tensors over NCCL (one group, backend
"cpu:gloo,cuda:nccl"), so that a decision or a log never waits inside NCCL.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp.config import env, machine
from robomimic_ddp.distributed import known_errors, watchdog
from robomimic_ddp.errors import LaunchError

logger = logging.getLogger(__name__)

_HEAD = 1024
"""Bytes of the first message of `gather_objects`."""

_BINDS = "device_id" in inspect.signature(dist.init_process_group).parameters
"""torch before 2.3 creates NCCL's communicator at its first use, on the tensor's device."""

_numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
"""Of the groups that this process forms at each address: a host may train several times."""
_LAST_ANSWER_SECONDS = 2.0
"""So that torch's error, which has more detail, comes first."""
_LAST_WORK_SECONDS = 0.02
"""Wait before a group is destroyed: torch 2.0 may hang there right after a collective, probably
with the GIL, which gloo's thread may need to free the collective's tensors.
"""

# A forked process, such as a data worker, has no threads of its parent. The destructor of a process
# group joins them, and hangs or crashes there: keep the parent's garbage.
os.register_at_fork(after_in_child=gc.freeze)


def is_initialized() -> bool:
    """Return whether this process belongs to a process group of any size."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Global rank of this process; 0 without a process group."""
    return dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    """Number of ranks over all nodes; 1 without a process group."""
    return dist.get_world_size() if is_initialized() else 1


def is_main() -> bool:
    """Return whether this is rank 0, which logs, saves and prompts."""
    return rank() == 0


@contextmanager
def process_group(
    backend: str,
    timeout_seconds: float,
    attempt: int = 0,
    device: str = "cpu",
    **rendezvous: Any,
) -> Iterator[None]:
    """Collective: joins the launcher's process group, and leaves it on a clean exit.

    device: what this rank trains on. A CUDA device is bound, and NCCL sends a first number, so that
    errors, as of two ranks on one GPU, show here and not in the first backward pass.

    attempt: number of restarts by a launcher that keeps its key-value store. The store has the
    addresses of earlier groups (torch 2.12: "connectFullMesh failed"), so each has other keys.

    rendezvous: passed to `dist.rendezvous` (`init_method` is its URL); empty for the launcher's
    environment (MASTER_ADDR, ...). An existing group is used and not destroyed. Nor is one after an
    exception: sockets close when the process ends, after its traceback was recorded, so torchrun
    always sees the failing rank first.
    """
    if is_initialized():
        yield
        return
    logger.info("joining the process group (backend %s)", backend)
    timeout, bound = timedelta(seconds=timeout_seconds), torch.device(device)
    try:
        url = rendezvous.pop("init_method", "env://")
        store, own_rank, ranks = _meet(url, timeout, **rendezvous)
        number = next(_numbers[f"{url} {env.main_address()}"])
        store = dist.PrefixStore(f"robomimic_ddp/attempt_{attempt}/{number}", store)
        joined = {"store": store, "rank": own_rank, "world_size": ranks}
        if bound.type == "cuda":
            torch.cuda.set_device(bound)
            if "nccl" in backend and _BINDS:
                joined["device_id"] = bound
        dist.init_process_group(backend, timeout=timeout, **joined)
    except (RuntimeError, ValueError) as error:
        raise LaunchError(
            f"the process group could not be formed with backend {backend}: {error}\n"
            "Every rank must reach MASTER_ADDR:MASTER_PORT; check that all ranks were started and "
            "that no firewall or stale process blocks the port. " + known_errors.remedy(str(error))
        ) from error
    store = dist.distributed_c10d._get_default_store()
    watchdog.begin(store, own_rank, ranks, timeout_seconds, ends_unheard="nccl" in backend)
    barrier()
    if bound.type == "cuda" and "nccl" in backend:
        _send_a_first_number(bound, backend)
    yield
    leave()


def _meet(url: str, timeout: timedelta, **rendezvous: Any) -> tuple[Any, int, int]:
    """Return the store of the rendezvous at `url` ("env://": the launcher's
    MASTER_ADDR:MASTER_PORT), this rank, and the number of ranks.

    Runs in a thread, since torch waits without a limit for a port that accepts connections and
    never answers (torch 2.0 with the GIL). Raises LaunchError then, and torch's errors.
    """
    outcome: list[Any] = []

    def try_to_meet() -> None:
        try:
            outcome.append(next(dist.rendezvous(url, timeout=timeout, **rendezvous)))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=try_to_meet, name="robomimic-ddp-rendezvous", daemon=True)
    thread.start()
    thread.join(timeout.total_seconds() + _LAST_ANSWER_SECONDS)
    if not outcome:
        raise LaunchError(
            "MASTER_ADDR:MASTER_PORT accepted the connection but did not answer for "
            f"{timeout.total_seconds():g} s (ddp.timeout): another program uses the port, or the "
            f"node or the network to it was lost ({env.main_address()}), so the ranks could not "
            "meet. Choose another MASTER_PORT, or leave it to torchrun "
            "(--standalone on one machine)."
        )
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    store, own_rank, ranks = outcome[0]
    store.set_timeout(timeout)
    return store, own_rank, ranks


def _send_a_first_number(device: torch.device, backend: str) -> None:
    """Collective: raises LaunchError if an all-reduce on the ranks' devices fails."""
    try:
        sum_over_ranks(torch.ones(1, device=device)).item()
    except RuntimeError as error:
        raise LaunchError(
            f"the ranks' GPUs cannot communicate (backend {backend}): {error}\nNCCL_DEBUG=INFO "
            "shows what NCCL tried, and `robomimic-ddp doctor --ranks N` whether this machine's "
            "GPUs reach each other. " + known_errors.remedy(str(error))
        ) from error


def leave() -> None:
    """Collective: waits for every rank, then leaves the process group, if there is one."""
    if is_initialized():
        watchdog.end()  # its thread uses the group's store
        time.sleep(_LAST_WORK_SECONDS)
        dist.destroy_process_group()


def sends_over_gloo(device: torch.device) -> bool:
    """Return whether tensors on `device` are sent over gloo; True without a process group."""
    if not is_initialized():
        return True
    return dist.group.WORLD._get_backend(device).name() == "gloo"


def barrier() -> None:
    """Collective: returns once every rank has called it."""
    if world_size() > 1:
        # An all-reduce of a CPU tensor: dist.barrier() would run over NCCL.
        dist.all_reduce(torch.zeros(1))


def broadcast_object(value: Any) -> Any:
    """Collective: returns the main rank's picklable `value`, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def gather_objects(value: Any, within: Any = None) -> list[Any]:
    """Collective: returns every rank's picklable `value`, in rank order, on every rank.

    Values below 1 kB take one message, larger ones two. within: a group of `without_time_limit`,
    for a long wait.
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
    """Collective: returns every rank's `data`, padded to `size` bytes, which is equal on all ranks.

    all_gather_object uses the device of the group's default backend (CUDA with NCCL), and always
    sends two messages; CPU tensors of bytes are sent over gloo.
    """
    message = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
    gathered = [torch.empty(size, dtype=torch.uint8) for _ in range(world_size())]
    dist.all_gather(gathered, message, group=within)
    return [part.numpy().tobytes() for part in gathered]


@contextmanager
def without_time_limit() -> Iterator[Any]:
    """Collective: a gloo group of all ranks for `gather_objects(..., within=)`; None on one rank.

    In it a rank waits for the others without a time limit. Created at once, and destroyed on a
    clean exit.
    """
    if world_size() == 1:
        yield None
        return
    patient_group = dist.new_group(backend="gloo", timeout=timedelta(days=365))
    with watchdog.without_time_limit():
        yield patient_group
    time.sleep(_LAST_WORK_SECONDS)
    dist.destroy_process_group(patient_group)


def cores_of_node() -> list[tuple[int, ...]]:
    """Collective: returns the cores that each rank of this node may run on, in rank order. Nodes
    are identified by host name: not every launcher numbers the ranks of a node consecutively, or
    exports their number.
    """
    here = env.host_name()
    gathered = gather_objects((here, machine.own_cores()))
    watchdog.on_nodes([host for host, _ in gathered])
    return [cores for host, cores in gathered if host == here]


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """Collective: returns the elementwise sum of `tensor` over ranks, as a new tensor."""
    total = tensor.clone()
    add_over_ranks(total)
    return total


def add_over_ranks(tensor: torch.Tensor) -> None:
    """Collective: makes `tensor` the elementwise sum over ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)


def broadcast_tensors(tensors: list[torch.Tensor]) -> None:
    """Collective: overwrites each tensor in place with the main rank's, of the same shape.
    They are sent as bytes: gloo does not send every type of number.
    """
    if world_size() == 1:
        return
    for tensor in (tensor.detach() for tensor in tensors if tensor.numel()):
        sent = tensor.contiguous()
        dist.broadcast(sent.view(-1).view(torch.uint8), src=0)
        if sent is not tensor:
            tensor.copy_(sent)
