"""The harness that runs hosts sees what it must see: leftovers and hangs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests import hosts
from tests.conftest import GPUS
from tests.hosts import Host, python, require_clean, run, torchrun


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind on purpose need not be waited for long."""
    monkeypatch.setattr(hosts, "_GONE_SECONDS", 2.0)


def test_a_hang_ends_with_the_stacks_of_its_threads() -> None:
    # Within these seconds even a busy machine has started Python, which can then write its stacks.
    result = run(None, sys.executable, "-c", "import time\ntime.sleep(100)", timeout=5.0)
    assert result.timed_out
    assert result.returncode != 0
    assert "most recent call first" in result.stderr


STARTED = """
import json, os, sys
launcher = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "ONLY_HERE")}
path = [entry for entry in sys.path if not entry.startswith(sys.prefix)][:3]
ours = sorted(name for name in sys.modules if name.split(".")[0] in ("robomimic", "robomimic_ddp"))
words = json.dumps([sys.argv[1:], path, launcher, ours, os.getsid(0) == os.getpid()])
sys.stdout.write(words + "\\n")  # at once: ranks write unbuffered
sys.stdout.flush()
if "leave" in sys.argv:
    import subprocess
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    print(subprocess.Popen(sleep, start_new_session=True).pid)
"""


@pytest.fixture
def started(tmp_path: Path) -> Host:
    """A "host" with the module `started`, which prints what it was started with."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "started.py").write_text(STARTED)
    return Host(tmp_path / "host")


@pytest.mark.parametrize("ranks", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_a_warm_start_is_what_a_cold_one_is(ranks: int | None, started: Host) -> None:
    """Arguments, import path, variables, modules, exit code; nothing stays from job to job."""
    reported = []
    for cold in (True, False, False):
        options = {"cold": cold, "added": {"ONLY_HERE": str(cold)}}
        if ranks is None:
            result = python(started, "started", "a", "b c", **options)
        else:
            result = torchrun(started, "started", "a", "b c", ranks=ranks, **options)
        require_clean(result)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        for line in lines:
            assert line[2].pop("ONLY_HERE") == str(cold)
            line[1].pop(0)  # its working folder, a new one each time
        reported.append(sorted(lines, key=str))
    assert reported[0] == reported[1] == reported[2] and len(reported[0]) == (ranks or 1)


@pytest.mark.parametrize("cold", [True, False])
def test_leftovers_are_seen(cold: bool, started: Host, impatient: None) -> None:
    left = python(started, "started", "leave", cold=cold)
    assert left.returncode == 0 and len(left.leftovers) == 1 and "sleep(100)" in left.leftovers[0]
    child = int(left.stdout.split()[-1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    with pytest.raises(AssertionError, match="leftovers"):
        require_clean(left)


def test_no_program_gets_a_gpu_or_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """But tests/gpu, which give their programs one."""
    for name in ("RANK", "ROBOMIMIC_DDP_MODE"):
        monkeypatch.setenv(name, "3")
    variables = hosts.environment(None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" == variables["CUDA_VISIBLE_DEVICES"]
    assert os.environ[GPUS] and "," not in os.environ[GPUS]
    assert not {"RANK", "ROBOMIMIC_DDP_MODE"} & variables.keys()
