"""Launchers of several nodes, with torchrun's own rendezvous on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robomimic_ddp.commands.launch import checks
from robomimic_ddp.errors import UsageError
from tests.hosts import environment
from tests.versions import NEEDS_NODES_THAT_LEAVE

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


def wait_for(word: str, files: list[Path], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not all(word in file.read_text() for file in files):
        assert time.monotonic() < end, [file.read_text() for file in files]
        time.sleep(0.1)


def test_a_launcher_says_that_it_waits_for_nodes_and_that_it_was_not_needed(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d"]
    words = [sys.executable, "-c", LAUNCHER, *flags, f"--rdzv_endpoint={endpoint}", "rank.py"]
    outputs = [tmp_path / f"{node}.txt" for node in range(3)]
    launchers = []

    def start(output: Path) -> None:
        with output.open("w") as file:
            given = {"cwd": tmp_path, "env": environment(None), "stdin": subprocess.DEVNULL}
            launchers.append(subprocess.Popen(words, stdout=file, stderr=file, **given))

    says = f"has been waiting at {endpoint} for 0 s: the job starts there once --nodes nodes"
    try:
        start(outputs[0])
        wait_for(says, outputs[:1])
        start(outputs[1])
        time.sleep(2)  # the ranks of both nodes run, or soon will
        start(outputs[2])
        wait_for(says, outputs[2:])
        time.sleep(2)  # torchrun looks at its nodes every second
        (tmp_path / "end").touch()
        assert [launcher.wait(60) for launcher in launchers] == [1, 1, 1]
    finally:
        for launcher in launchers:
            launcher.kill()
    first, second, surplus = (output.read_text() for output in outputs)
    assert "a rank has failed, see the root cause above" in first, first
    assert "a rank has failed, see the root cause above" in second, second
    assert "Traceback" not in surplus, surplus
    assert f"launch: the job at {endpoint} has ended, or its first node or the" in surplus


HANGS = """
import sys, time
from robomimic_ddp.config import env
if "leaves" in sys.argv:
    env.keep_left_note(True)
    time.sleep(10)
    sys.exit("ends by itself")
time.sleep(300)
"""


@pytest.mark.parametrize("does", [pytest.param("hangs", marks=NEEDS_NODES_THAT_LEAVE), "leaves"])
def test_a_rank_that_hangs_is_ended_after_another_node(does, tmp_path):
    """In no collective, so that it cannot notice; but not once the ranks have left each other."""
    (tmp_path / "first.py").write_text(HANGS)
    (tmp_path / "second.py").write_text("import sys; sys.exit(1)")
    patience = "from robomimic_ddp.commands.launch import other_nodes; "
    launcher = f"{patience}other_nodes._PATIENCE_SECONDS = 1.0\n{LAUNCHER}"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d"]
    flags += [f"--rdzv_endpoint={endpoint}", "--rdzv_conf=keep_alive_interval=1"]
    outputs, launchers = [tmp_path / "first.txt", tmp_path / "second.txt"], []
    try:
        for output in outputs:
            words = [sys.executable, "-c", launcher, *flags, f"{output.stem}.py", does]
            with output.open("w") as file:
                given = {"cwd": tmp_path, "env": environment(None), "stdin": subprocess.DEVNULL}
                launchers.append(subprocess.Popen(words, stdout=file, stderr=file, **given))
            if len(launchers) == 1:
                wait_for("has been waiting at", outputs[:1])  # so that the store is in its launcher
        assert [launcher.wait(90) for launcher in launchers] == [1, 1]
    finally:
        for launcher in launchers:
            launcher.terminate()
            launcher.wait()
    first = outputs[0].read_text()
    assert ("the launcher of another node has ended, see its" in first) == (does == "hangs"), first
    assert ("ends by itself" in first) == (does == "leaves") and "Traceback" not in first


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


def address_of_this_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("needs a network besides loopback")
        return probe.getsockname()[0]
