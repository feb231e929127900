"""A real Slurm of two nodes on this machine: munged, slurmctld, and two slurmds, which have a port
and a folder each.

Each node is a process namespace with its own host name, and ends at once with all its processes.
Only its programs know the names n1 and n2. Needs root, and the packages slurm-wlm and munge.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts import Host, environment

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "setpriv")
_ADDRESSES = "127.0.1.1 n1\n127.0.1.2 n2\n"
START_SECONDS = 60.0
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n.spool
StateSaveLocation={folder}/state
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
FirstJobId={job}
SlurmdTimeout=20
NodeName=n1 NodeAddr=127.0.1.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeAddr=127.0.1.2 Port={ports[2]} CPUs=4
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1
PartitionName=high Nodes=n1,n2 PriorityTier=2
"""
"""`cred_expire` is also how long a requeued job waits."""


def missing() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurm-wlm munge"
    if os.getuid() != 0:
        return "a Slurm with its own process namespaces needs root"
    alone = subprocess.run([*_NAMESPACES, "true"], capture_output=True, check=False)
    return None if alone.returncode == 0 else f"unshare: {alone.stderr.decode().strip()}"


_ENDS_WITH_THE_TESTS = "setpriv --pdeathsig KILL".split()
_NAMESPACES = "unshare --uts --mount --pid --fork --kill-child --mount-proc".split()


class Cluster:
    """The daemons in `folder`, and Slurm's commands with them."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        self.folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        settings = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": programs}
        self.variables = environment(host, settings)
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        """Starts all, and returns when both nodes are idle."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [held.getsockname()[1] for held in sockets]
        for held in sockets:
            held.close()
        name = socket.gethostname().partition(".")[0]
        job = random.randrange(1, 11000)  # scripts give a job a port by its number
        text = _CONFIG.format(host=name, ports=ports, folder=self.folder, job=job)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {name}\n{_ADDRESSES}")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{name}={self.folder}/munge.{file}" for name, file in files.items()]
        self._begin("munged", "munged", "--foreground", "--force", f"--key-file={key}", *words)
        self._begin("slurmctld", "slurmctld", "-D", "-i")
        for node in NODES:
            self.boot(node)
        self.until(lambda: self.states() == ["idle", "idle"], START_SECONDS, "two idle nodes")

    def _begin(self, name: str, *words: str) -> None:
        command = [*_ENDS_WITH_THE_TESTS, *words]
        options = {"env": self.variables, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, **options)
        self._daemons[name] = process

    def boot(self, node: str) -> None:
        """Starts a node; its first process also buries the processes whose parent has died."""
        script = (
            f"hostname {node}; mount --bind {self.folder}/hosts /etc/hosts; slurmd -D -N {node}"
        )
        self._begin(node, *_NAMESPACES, "sh", "-c", f"{script} & wait")

    def cut_power(self, name: str) -> None:
        """Ends a node with all its processes, or another daemon, at once."""
        self._daemons.pop(name).kill()

    def stop(self) -> None:
        """Ends everything."""
        for name in [*NODES, "slurmctld", "munged"]:
            if name in self._daemons:
                process = self._daemons[name]
                process.kill()
                process.wait()

    def states(self) -> list[str]:
        return self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()

    def job(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job: NAME=VALUE."""
        words = self.ask("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ask(self, *words: object, without: tuple[str, ...] = (), **added: str) -> str:
        """Runs a command of Slurm's and returns what it prints."""
        variables = {name: text for name, text in self.variables.items() if name not in without}
        done = subprocess.run(
            [str(word) for word in words], env={**variables, **added}, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def until(self, reached: Callable[[], Any], seconds: float, what: str) -> Any:
        """Waits until `reached()` is true."""
        deadline = time.monotonic() + seconds
        while not (value := reached()):
            assert time.monotonic() < deadline, f"no {what} after {seconds:.0f} s"
            time.sleep(0.3)
        return value
