"""Nodes with separate addresses, names, processes and disks on one machine: a network namespace
for each, joined by a switch whose ports can be switched off.

A port that is off drops what is sent and tells nobody, as a broken cable or a machine without power
does: no connection is closed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import Host, environment

PORT = 29400
"""Where torchruns meet; each cluster has separate networks, so no other program has it."""
_NETWORKS = {4: ("10.77.0.{}", 24), 6: ("fd77::{}", 64)}
_DISK = "runs"


@dataclass(eq=False)
class Job:
    """A command on a node, and what it has printed so far."""

    process: subprocess.Popen
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(errors="replace")

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it still runs after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def kill(self) -> None:
        """Ends the command with all that it has started: the first process of its node's processes
        ends, and the kernel kills the others.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(eq=False)
class Node:
    name: str
    namespace: str
    address: str
    disk: Path
    """What this node sees as the cluster's folder `runs`."""
    cluster: Cluster = field(repr=False)
    jobs: list[Job] = field(default_factory=list)

    def start(self, host: Host, *command: object, added: Mapping[str, str] | None = None) -> Job:
        """Starts Python with `command` on the node."""
        hosts, runs = self.cluster.folder / "hosts", self.cluster.folder / _DISK
        setup = (
            f"hostname {self.name} && mount --bind {hosts} /etc/hosts && "
            f'mount --bind {self.disk} {runs} && exec "$@"'
        )
        words = ["ip", "netns", "exec", self.namespace]
        words += ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words += ["sh", "-c", setup, "sh", sys.executable, *map(str, command)]
        path = self.cluster.folder / f"{self.name}-{len(self.jobs)}.txt"
        with path.open("w") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            variables = environment(host, added)
            process = subprocess.Popen(words, env=variables, start_new_session=True, **streams)
        self.jobs.append(Job(process, path))
        return self.jobs[-1]

    def cut(self) -> None:
        """Switches its port off."""
        _ip("-n", self.cluster.switch, "link", "set", self.name, "down")

    def mend(self) -> None:
        """Switches its port on."""
        _ip("-n", self.cluster.switch, "link", "set", self.name, "up")

    def processes(self) -> list[str]:
        """Processes in the node's network."""
        return _ip("netns", "pids", self.namespace).split()


@dataclass(eq=False)
class Cluster:
    folder: Path
    switch: str
    nodes: list[Node] = field(default_factory=list)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def add(self, address: str, length: int) -> None:
        name = f"node0{len(self.nodes) + 1}"
        disk = self.folder / f"{name}-disk"
        disk.mkdir()
        node = Node(name, f"{self.switch}-{name}", address, disk, self)
        self.nodes.append(node)
        _ip("netns", "add", node.namespace)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", node.namespace)
        _ip("-n", self.switch, "link", "add", node.name, *peer)
        _ip("-n", self.switch, "link", "set", node.name, "master", "switch", "up")
        added = ("nodad",) if ":" in address else ()
        _ip("-n", node.namespace, "addr", "add", f"{address}/{length}", "dev", "eth0", *added)
        for device in ("lo", "eth0"):
            _ip("-n", node.namespace, "link", "set", device, "up")

    def end(self) -> None:
        for node in self.nodes:
            for job in node.jobs:
                job.kill()
        for namespace in (*(node.namespace for node in self.nodes), self.switch):
            with suppress(subprocess.CalledProcessError):  # it is not there
                _ip("netns", "delete", namespace)


@contextmanager
def cluster(folder: Path, nodes: int = 2, version: int = 4) -> Iterator[Cluster]:
    """`nodes` nodes with IPv4 or IPv6 addresses, named node01, ...; `folder`/runs is another disk
    on each of them. Everything is gone after the block.
    """
    made = Cluster(folder, f"nodes-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    network, length = _NETWORKS[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DISK).mkdir()
    _ip("netns", "add", made.switch)
    try:
        _ip("-n", made.switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", made.switch, "link", "set", "switch", "up")
        for number in range(1, nodes + 1):
            made.add(network.format(number), length)
        names = [f"{node.address} {node.name}" for node in made.nodes]
        (folder / "hosts").write_text(
            "\n".join(["127.0.0.1 localhost", "::1 localhost", *names, ""])
        )
        yield made
    finally:
        made.end()


def missing() -> str:
    """Why this machine can have no such nodes; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not all(map(shutil.which, ("ip", "unshare"))):
        return "there is no ip (iproute2) or unshare (util-linux)"
    trial = Cluster(Path(), f"nodes-{os.getpid()}-trial")
    try:
        _ip("netns", "add", trial.switch)
        _ip("-n", trial.switch, "link", "add", "switch", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"ip netns does not work: {error.stderr.strip()}"
    finally:
        trial.end()
    return ""


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout
