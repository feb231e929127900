"""What the launcher refuses before torchrun starts; config and data are the ranks' to check."""

from __future__ import annotations

import errno
import ipaddress
import socket

from robomimic_ddp import files
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.config import env
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.errors import PatchError, UsageError


def require_rendezvous(rdzv: str, nodes: int) -> None:
    """Raise UsageError if this machine has the address where nodes are to meet, and another program
    its port, if it is the only node and does not have it, or if the host is not a name. Passes for
    loopback, where each node is a launcher of this machine.
    """
    host, _, port = rdzv.rpartition(":")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return  # torchrun says that the name does not resolve
    except UnicodeError as error:
        raise UsageError(
            f"--rdzv {rdzv}: {host!r} cannot be the name of a host. Expected one such as "
            "node01.cluster, whose parts have 1 to 63 characters. Correct it on every node."
        ) from error
    faults = [_fault(family, kind, place) for family, kind, _, _, place in addresses]
    if errno.EADDRINUSE in faults:
        raise UsageError(
            f"--rdzv {rdzv}: the port is in use on this node, perhaps by another job, and the "
            "nodes of the two would mix. Choose another port, the same on every node, or end the "
            "other job."
        )
    if nodes == 1 and all(fault == errno.EADDRNOTAVAIL for fault in faults):
        raise UsageError(
            f"--nodes 1 --rdzv {rdzv}: this machine does not have that address, so it would train "
            "alone, without the nodes that meet there. Give the number of all nodes, the same on "
            "each; for one node, leave out both flags."
        )


def _fault(family: int, kind: int, place: tuple) -> int | None:
    """Return the number of the error if this process cannot listen at an address."""
    if ipaddress.ip_address(place[0].partition("%")[0]).is_loopback:
        return None
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
        except OSError as error:
            return error.errno
    return None


def require_requeue_note() -> None:
    """Raises UsageError where a job's script waits for a file that this node does not see."""
    note = env.requeue_note()
    if note is not None and not note.is_file():
        raise UsageError(
            f"{note} ({env.REQUEUE_NOTE}) is not there: the job's script made it before, so it is "
            "on another node's disk, and the script would not see that this run has stopped. "
            "Submit from a folder that all nodes see, or name one with --chdir."
        )


def require_patched(module: str = DOT_LIST_MODULE) -> None:
    """Raise PatchError if a training module of a host, found as a rank finds it and without an
    import, is not patched, or is missing; a module that does not train passes.
    """
    package, *inner = module.split(".")
    folder = host_edits.importable_folder(package)
    if folder is None or not (folder / "utils" / "train_utils.py").is_file():
        return  # it is not a host
    file = folder.joinpath(*inner).with_suffix(".py")
    try:
        text = files.read_bytes(file).decode(errors="replace")
    except OSError:
        text = ""
    if "def train(" in text and "robomimic_ddp" not in text:
        fault = f"{file} is not patched: every rank would train a separate model"
    elif not file.is_file() and module == DOT_LIST_MODULE:
        fault = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return
    raise PatchError(
        f"{fault}. Python imports this robomimic: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )
