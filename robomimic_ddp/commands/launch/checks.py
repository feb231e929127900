"""Checks before torchrun starts: those checks of the ranks on options, config and data that need no
torch.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config.host import early_checks, host_config, json_config
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import tfds_sharding
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import PatchError, UsageError

_SLOW = ("torch", "tensorflow", "jax")
_EPISODES = 20
"""Episodes of an HDF5 file to check here; the ranks check more."""


def require_trainable(settings: Settings) -> None:
    """Raise the errors that would stop all ranks, or should, within about a second.

    Passes where that is not certain. Data is checked on one node only: several nodes may have it in
    other places.
    """
    if settings.rdzv:
        require_rendezvous(settings.rdzv, settings.nodes)
    entry = require_patched(settings.module)
    path = str(settings.config)
    start = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    with _quiet_without_slow_imports(), early_checks.leaving_the_rest():
        json_config.read_json(path, "--config ")
        config = early_checks.job_config(entry, [*start, *settings.overrides])
        if config is not None and settings.nodes == 1:
            _require_data(config)


def require_rendezvous(rdzv: str, nodes: int) -> None:
    """Raise UsageError if this machine has the address where nodes are to meet, and another program
    its port, or if it is the only node and does not have it. Passes for loopback, where each node
    is a launcher of this machine.
    """
    host, _, port = rdzv.rpartition(":")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return  # torchrun says that the name does not resolve
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


def require_patched(module: str = DOT_LIST_MODULE) -> str:
    """Return the source text of a training module, "" if it is not in a host. Raises PatchError if
    it trains and is not patched, or is missing; a module that does not train passes.
    """
    file = early_checks.module_file(module)
    text = early_checks.text_of(file)
    if "def train(" in text and "robomimic_ddp" not in text:
        fault = f"{file} is not patched: every rank would train a separate model"
    elif file is not None and not file.is_file() and module == DOT_LIST_MODULE:
        fault = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return text
    raise PatchError(
        f"{fault}. Python imports this robomimic: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )


def _require_data(config: Any) -> None:
    hdf5 = host_config.ROBOMIMIC_FORMAT
    if host_config.uses_rlds(config):
        dataset_configs(config)
    elif host_config.trains_by_own_pipeline(config):
        tfds_sharding.require_datasets(config.train.data_path, config.train.dataset_names)
    elif config.train.get("data_format", hdf5) == hdf5:
        hdf5_validate.check(config, _EPISODES)


@contextmanager
def _quiet_without_slow_imports() -> Iterator[None]:
    """For the block, print nothing, and let imports of _SLOW raise ImportError unless they are
    already imported.
    """
    hidden = [name for name in _SLOW if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
