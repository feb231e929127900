"""Launchers of several nodes, with torchrun's own rendezvous on this machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from robomimic_ddp.commands.launch import checks
from robomimic_ddp.errors import UsageError
from tests.hosts import environment
from tests.processes import wait_for

LAUNCHER = """
import sys
from robomimic_ddp.commands.launch import quiet_torchrun
quiet_torchrun._LOOK_SECONDS = quiet_torchrun._WAIT_SECONDS = 0.2
sys.exit(quiet_torchrun.main())
"""
RANK = """
import pathlib, sys, time
while not pathlib.Path("end").exists():
    time.sleep(0.1)
sys.exit(1)
"""


def wait_for_word(word: str, file: Path) -> None:
    wait_for(lambda: word in file.read_text(), state=file.read_text)


class Nodes:
    """Launchers of a job of two nodes with one rank each, which write NAME.txt."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        self.folder, self.launchers = folder, []

    def start(self, name: str, *words: str, first: str = "") -> Path:
        """`words`: of torchrun; `first`: what the launcher runs first."""
        flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d"]
        flags += [f"--rdzv_endpoint={self.endpoint}", *words]
        with (output := self.folder / f"{name}.txt").open("w") as file:
            options = {"cwd": self.folder, "env": environment(None), "stdin": subprocess.DEVNULL}
            command = [sys.executable, "-c", first + LAUNCHER, *flags]
            self.launchers.append(subprocess.Popen(command, stdout=file, stderr=file, **options))
        return output

    def wait(self) -> list[int]:
        return [launcher.wait(90) for launcher in self.launchers]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    job = Nodes(tmp_path)
    yield job
    for launcher in job.launchers:
        launcher.terminate()
        launcher.wait()


def test_a_launcher_says_that_it_waits_for_nodes_and_that_it_was_not_needed(nodes, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    says = f"has been waiting at {nodes.endpoint} for 0 s: the job starts there once --nodes nodes"
    outputs = [nodes.start("first", "rank.py")]
    wait_for_word(says, outputs[0])
    outputs.append(nodes.start("second", "rank.py"))
    time.sleep(2)  # the ranks of both nodes run, or soon will
    surplus = nodes.start("surplus", "rank.py")
    wait_for_word(says, surplus)
    time.sleep(2)  # torchrun looks at its nodes every second
    (tmp_path / "end").touch()
    assert nodes.wait() == [1, 1, 1]
    for output in outputs:
        text = output.read_text()
        assert "a rank has failed, see the root cause above" in text, text
    text = surplus.read_text()
    assert "Traceback" not in text, text
    # It reads that the job is closed, or the first node has gone before it does.
    ends = (
        "had all its nodes without this one, and has ended",
        "has ended, or its first node or the",
    )
    assert any(f"launch: the job at {nodes.endpoint} {end}" in text for end in ends), text


def test_a_launcher_that_waits_for_nodes_ends_on_a_signal(nodes, number=signal.SIGTERM):
    """Linux sends the first process of a container only those that it handles."""
    output = nodes.start("first", "rank.py")
    wait_for_word("has been waiting at", output)
    nodes.launchers[0].send_signal(number)
    assert nodes.wait() == [128 + number]
    text = output.read_text()
    assert f"launch: no ranks were started after {number.name}\n" in text, text
    assert "Traceback" not in text, text


CONNECTS = """
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backend
store = backend.TCPStore
backend.TCPStore = lambda *words, **named: (print("connects", flush=True), store(*words, **named))
"""


def test_a_launcher_that_cannot_reach_the_first_node_ends_on_a_signal(nodes, number=signal.SIGINT):
    """For a minute it is in C++, where no handler of Python's runs."""
    output = nodes.start("second", "--rdzv_conf=is_host=0", "rank.py", first=CONNECTS)
    wait_for_word("connects", output)
    time.sleep(1)
    nodes.launchers[0].send_signal(number)
    assert nodes.launchers[0].wait(20) == 128 + number
    text = output.read_text()
    assert text.count(f"launch: no ranks were started after {number.name}\n") == 1, text
    assert "Traceback" not in text, text


def test_a_second_job_at_the_address_of_a_first_is_refused():
    address = address_of_this_machine()
    with socket.create_server((address, 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            UsageError, match="the port is in use on this node, perhaps by another job"
        ):
            checks.require_rendezvous(f"{address}:{port}", 2)
        checks.require_rendezvous(f"192.0.2.1:{port}", 2)  # another machine's address
        with pytest.raises(UsageError, match="--nodes 1 --rdzv .*: this machine does not have"):
            checks.require_rendezvous(f"192.0.2.1:{port}", 1)
        checks.require_rendezvous(f"no-such-name.invalid:{port}", 2)
    for nodes in (1, 2):  # Slurm's script gives an address on one node, too
        checks.require_rendezvous(f"{address}:{port}", nodes)
    with socket.create_server(("127.0.0.1", 0)) as first:  # two launchers of one machine meet there
        checks.require_rendezvous(f"localhost:{first.getsockname()[1]}", 2)


@pytest.mark.bad_input
@pytest.mark.parametrize("host", ["node01..cluster", "x" * 64 + ".cluster"])
def test_a_first_node_that_cannot_have_that_name_is_refused(host):
    with pytest.raises(UsageError, match=f"--rdzv {host}:29400: '{host}' cannot be the name of a"):
        checks.require_rendezvous(f"{host}:29400", 2)


def address_of_this_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("needs a network besides loopback")
        return probe.getsockname()[0]
