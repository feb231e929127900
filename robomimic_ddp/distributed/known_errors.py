"""Remedies for known errors of torch, NCCL and the machine, by a part of the message.

docs/troubleshooting.md explains each.
"""

from __future__ import annotations

import re

_ERROR = re.compile(r"\b\w*(error|exception)\b.*:", re.IGNORECASE)
_OF_TORCHRUN = "torch.distributed.elastic.multiprocessing"
"""In torchrun's own lines about a rank that failed."""
_PORT = "A port is taken: leave out --port (torchrun --standalone picks one), or choose another."
_START = (
    "NCCL could not start: in Docker --ipc=host or --shm-size=16g and --network=host; between "
    "nodes NCCL_SOCKET_IFNAME and no firewall. NCCL_DEBUG=INFO logs more."
)
_SHARED = "Shared memory is full: docker run --shm-size=16g or --ipc=host, or fewer data workers."
REMEDIES = {
    "Address already in use": _PORT,
    "EADDRINUSE": _PORT,
    "Expected to have finished reduction": "A parameter got no gradient in a step. If that is "
    "meant: ddp.kwargs.find_unused_parameters=true.",
    "Duplicate GPU detected": "Two ranks have one GPU: start as many ranks on a node as it has "
    "GPUs (--nproc_per_node, --ntasks-per-node), and let CUDA_VISIBLE_DEVICES show all of them to "
    "every rank, or to each its own.",
    "ncclUnhandledCudaError": _START,
    "ncclSystemError": _START,
    "NCCL error": "Run again with NCCL_DEBUG=INFO; in Docker start with --ipc=host or "
    "--shm-size=16g; for a trial NCCL_IB_DISABLE=1 or NCCL_P2P_LEVEL=SYS.",
    "connectFullMesh": "Ranks cannot reach each other: allow all ports between nodes; set "
    "GLOO_SOCKET_IFNAME to the interface that joins the nodes (in /etc/hosts a node's own name may "
    "be 127.0.1.1).",
    "Bus error": _SHARED,
    "out of shared memory": _SHARED,
    "out of memory": "The batch is for each rank: lower train.batch_size (ddp.accumulate keeps the "
    "samples per step), or ddp.batch=global, ddp.precision=bf16, ddp.activation_checkpointing="
    "true; nvidia-smi shows what else uses the GPU's memory.",
    "read data (": "An HDF5 file of train.data is damaged. `h5dump FILE > /dev/null` reads all of "
    "it and names the dataset; copy or write the file again.",
    "Too many open files": "ulimit -n 4096, or fewer data workers.",
    "failed to map segment": "The process may not use that much memory: raise `ulimit -v`, or the "
    "memory that the job asks for.",
    "No usable temporary directory": "Set TMPDIR to a writable folder on a disk that has room.",
    "No space left on device": "Shared memory (/dev/shm) or a disk is full; `df -h` shows which, "
    "and `df -i` one that has no room for more files.",
}
"""The first match is the most specific."""


def remedy(text: str) -> str:
    """Return what to do about a failure that printed `text`; "" if it is unknown."""
    return next((remedy for words, remedy in REMEDIES.items() if words in text), "")


def error_line(text: str) -> str:
    """Return the line of a job's output that a user should read first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and _OF_TORCHRUN not in line]
    return (errors or lines or ["it printed nothing"])[-1][:400]
