"""The network of this node: names, loopback, ports, interfaces."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.commands.doctor.machine import CONTAINER


def check_network(context: Context) -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None)[0][4][0]
        yield Finding("network", OK, f"this host's name resolves: {name} -> {address}")
    except OSError as error:
        yield Finding(
            "network",
            WARN,
            f"this host's name does not resolve: {name} ({error})",
            f"Add '127.0.0.1 {name}' to /etc/hosts; ranks look each other up by it.",
        )
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        yield Finding("network", OK, f"loopback works; a free port: {port}")
    except OSError as error:
        remedy = "A firewall blocks 127.0.0.1, or no port is free. Allow local connections."
        yield Finding("network", FAIL, f"no connection to this machine itself: {error}", remedy)
    if CONTAINER.exists():
        remedy = "For several nodes start it with network_mode: host (docker run --network=host)."
        yield Finding("network", OK, f"inside a container. {remedy}")
    yield from _interface(context)
    yield from _master_address(context)
    yield from _master_port(context)


def _interface(context: Context) -> Iterator[Finding]:
    folder = Path("/sys/class/net")
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = context.variables.get(variable, "")
        wanted = [part.strip("=^ ") for part in value.split(",") if part.strip()]
        excluding = value.startswith("^")
        known = [part for part in wanted if any(name.startswith(part) for name in names)]
        if wanted and not known and not excluding:
            found = f"{variable}={value} names no interface of this node ({', '.join(names)})"
            remedy = "Name the one that reaches the other nodes (ip addr), or unset it."
            yield Finding("network", FAIL, found, remedy)


def _master_address(context: Context) -> Iterator[Finding]:
    address = context.variables.get("MASTER_ADDR", "")
    try:
        if address:
            socket.getaddrinfo(address, None)
    except (OSError, UnicodeError, ValueError) as error:
        found = f"MASTER_ADDR={address} does not resolve: {error}"
        remedy = "Name the main node as this node knows it, or unset it (torchrun --standalone)."
        yield Finding("network", FAIL, found, remedy)


def _master_port(context: Context) -> Iterator[Finding]:
    port = context.variables.get("MASTER_PORT", "")
    if not port or "RANK" in context.variables:  # of a rank: env.read_launch_env checks it
        return
    if not (port.isascii() and port.isdecimal()):
        found = f"MASTER_PORT={port} is no port: expected a number of 1 to 65535"
        yield Finding("network", FAIL, found, "Unset it; torchrun --standalone takes a free port.")
        return
    try:
        with socket.create_server(("", int(port))):
            return
    except (OSError, OverflowError) as error:
        found = f"MASTER_PORT={port} cannot be used: {error}"
        yield Finding("network", FAIL, found, "Unset it; torchrun --standalone takes a free port.")
