"""Checks this machine: GPUs, shared memory, cores, network, environment variables."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from robomimic_ddp.commands.doctor.findings import Context, Finding, fail, judge, ok, warn
from robomimic_ddp.commands.launch import devices
from robomimic_ddp.config import launch_env, machine, options
from robomimic_ddp.config.planning import data_workers
from robomimic_ddp.errors import RobomimicDDPError

GIB = 2**30
SHARED_MEMORY, LEAST_SHARED_MEMORY = Path("/dev/shm"), GIB
SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits until its kernel has ended; for debugging only",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective; for debugging only",
    "NCCL_P2P_DISABLE": "GPUs exchange gradients through the CPU's memory",
    "NCCL_SHM_DISABLE": "ranks of a node communicate over the network",
    "NCCL_IB_DISABLE": "InfiniBand is off: nodes communicate over Ethernet",
    "NCCL_P2P_LEVEL": "limits which GPUs communicate directly; NCCL's default is usually right",
}
"""Workarounds that often stay set after they are needed."""
_HARMLESS = ("", "0", "OFF", "INFO")
_NONE_VISIBLE = "No CUDA GPUs are available"
"""torch's error if the driver works but no device is visible."""


def check_gpus(context: Context) -> Iterator[Finding]:
    gpus = context.gpus
    for index, gpu in enumerate(gpus):
        name = f"GPU {index}: {gpu['name']}"
        if "error" in gpu:
            yield fail(f"{name}: {gpu['error']}", "Restart the node, or exclude this GPU.")
            continue
        message = f"{name}, {gpu['free'] / GIB:.1f} of {gpu['memory'] / GIB:.1f} GiB free"
        remedy = "Other processes use it (see nvidia-smi): end them, or choose other GPUs."
        yield judge(gpu["free"] >= gpu["memory"] / 2, message, remedy)
    if len({gpu["name"] for gpu in gpus}) > 1:
        remedy = "Every step waits for the slowest: choose equal GPUs with CUDA_VISIBLE_DEVICES."
        yield warn("the GPUs are of different kinds", remedy)
    if "error" not in context.torch and not gpus:
        yield _no_gpu(context)


def _no_gpu(context: Context) -> Finding:
    """Return why torch sees no GPU, if the node has any."""
    visible, count = context.variables.get("CUDA_VISIBLE_DEVICES"), devices.installed_gpus()
    if not count:
        return ok("no GPU: training runs on the CPU, and ranks communicate over gloo")
    reason = context.torch.get("cuda_error") or "a build without CUDA"
    remedy = "Install a torch whose CUDA is not newer than the driver's (nvidia-smi shows it)."
    if visible is not None and _NONE_VISIBLE in reason:
        reason = f"CUDA_VISIBLE_DEVICES={visible!r} hides them"
        remedy = "Unset CUDA_VISIBLE_DEVICES, or set it to GPUs that nvidia-smi lists."
    return fail(f"{count} GPU(s) here, but torch sees none: {reason}", remedy)


def check_shared_memory(_: Context) -> Iterator[Finding]:
    if not SHARED_MEMORY.is_dir():
        return
    size = shutil.disk_usage(SHARED_MEMORY)
    message = f"{SHARED_MEMORY}: {size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    remedy = "Data workers and NCCL share tensors through it; Docker: --shm-size=16g or --ipc=host."
    yield judge(size.free >= LEAST_SHARED_MEMORY, message, remedy)


def check_cores(context: Context) -> Iterator[Finding]:
    """Report how many data workers the cores have room for. The plan of a job warns of more."""
    cores, ranks = machine.usable_cores(), context.ranks or len(context.gpus) or 1
    room = data_workers.of_share("auto", cores // ranks)
    message = f"{cores} CPU core(s) for {ranks} rank(s): room for {room} data worker(s) each (HDF5)"
    yield judge(ranks <= cores, message, f"Use at most {cores} ranks.")


def check_network(context: Context) -> Iterator[Finding]:
    """Check names, loopback, MASTER_PORT and the network interfaces set for NCCL and gloo."""
    variables, name, faults = context.variables, socket.gethostname(), []

    @contextmanager
    def attempt(fault: Callable[[str, str], Finding], message: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except (OSError, OverflowError, ValueError) as error:  # ValueError: a name or a number
            faults.append(fault(f"{message}: {error}", remedy))

    remedy = f"Add '127.0.0.1 {name}' to /etc/hosts: ranks find each other by this name."
    with attempt(warn, f"this host's name {name} does not resolve", remedy):
        socket.getaddrinfo(name, None)
    if main_node := variables.get("MASTER_ADDR"):
        remedy = "Give a name of the main node that resolves here, or unset MASTER_ADDR."
        with attempt(fail, f"MASTER_ADDR={main_node} does not resolve", remedy):
            socket.getaddrinfo(main_node, None)
    remedy = "A firewall blocks 127.0.0.1, or no port is free: allow local connections."
    with attempt(fail, "this machine cannot connect to itself", remedy):
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    port = variables.get("MASTER_PORT")
    if port and "RANK" not in variables:  # check_variables reports those of a rank
        remedy = "Unset it: torchrun --standalone uses a free port."
        with attempt(fail, f"MASTER_PORT={port} cannot be used", remedy):
            socket.create_server(("", int(port))).close()
    faults += _interfaces(variables)
    yield from faults or [ok("names resolve, and this machine can connect to itself")]


def _interfaces(variables: Mapping[str, str]) -> Iterator[Finding]:
    folder = Path("/sys/class/net")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if names else ():
        value = variables.get(variable, "")
        prefixes = tuple(prefix.strip("= ") for prefix in value.split(",") if prefix.strip())
        exists = any(name.startswith(prefixes) for name in names)
        if prefixes and not exists and not value.startswith("^"):  # ^ excludes interfaces
            message = f"{variable}={value} matches no interface of this node ({', '.join(names)})"
            remedy = "Name the interface that reaches the other nodes (see ip addr), or unset it."
            yield fail(message, remedy)


def check_variables(context: Context) -> Iterator[Finding]:
    """Check the launcher's variables, the options, and variables that slow training down."""
    variables = context.variables
    try:
        launch = launch_env.read_launch_env(variables)
        options.resolve(environment=launch.option_texts)
    except RobomimicDDPError as error:
        yield fail(str(error), "Unset or correct it.")
    else:
        message = "no variables of a launcher are set in this shell"
        if launch.launched:
            message = f"RANK={launch.rank} and WORLD_SIZE={launch.world_size} are set in this shell"
        remedy = "Unset them: a program started without torchrun would believe it is a rank."
        yield judge(not launch.launched, message, remedy)
    for name, effect in SLOWING.items():
        if variables.get(name, "").upper() not in _HARMLESS:
            message = f"{name}={variables[name]}: {effect}"
            yield warn(message, f"Unset {name}, unless it is still needed.")
