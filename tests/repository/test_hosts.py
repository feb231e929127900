"""The harness that runs hosts sees what it must see: leftovers, hangs, and the shrunk net."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests import hosts
from tests.conftest import GPUS
from tests.hosts import Host, installed_package, python, require_clean, run, torchrun

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"],
                         start_new_session=True)
print(child.pid)
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind on purpose need not be waited for long."""
    monkeypatch.setattr(hosts, "_GONE_SECONDS", 2.0)


def test_a_process_left_behind_is_reported_and_killed(impatient: None) -> None:
    result = run(None, sys.executable, "-c", LEAVES_A_CHILD)
    assert result.returncode == 0
    assert len(result.leftovers) == 1
    assert "time.sleep(100)" in result.leftovers[0]
    child = int(result.stdout)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    with pytest.raises(AssertionError, match="leftovers"):
        require_clean(result)


def test_a_hang_ends_with_the_stacks_of_its_threads() -> None:
    # Within these seconds even a busy machine has started Python, which can then write its stacks.
    result = run(None, sys.executable, "-c", "import time\ntime.sleep(100)", timeout=5.0)
    assert result.timed_out
    assert result.returncode != 0
    assert "most recent call first" in result.stderr


def test_launcher_variables_do_not_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("ROBOMIMIC_DDP_MODE", "dp")
    call = "import os; print({k for k in os.environ if k in ('RANK', 'ROBOMIMIC_DDP_MODE')})"
    assert run(None, sys.executable, "-c", call).stdout.strip() == "set()"
    assert os.environ["RANK"] == "3"


def test_the_copy_is_imported_in_place_of_the_installed_host(plain_host: Host) -> None:
    call = (
        "import robomimic.models.diffusion_policy_nets as nets;"
        "net = nets.ConditionalUnet1D(input_dim=4, global_cond_dim=8);"
        "print(nets.__file__, sum(p.numel() for p in net.parameters()))"
    )
    result = run(plain_host, sys.executable, "-c", call)
    require_clean(result)
    path, parameters = result.stdout.splitlines()[-1].split()
    assert path.startswith(str(plain_host.package))
    assert not path.startswith(str(installed_package()))
    assert int(parameters) < 100_000


STARTED = """
import json, os, sys
if "fail" not in sys.argv and "leave" not in sys.argv:
    import torch  # a cold start is slow for it, and a warm one has it
launcher = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "ONLY_HERE")}
path = [entry for entry in sys.path if not entry.startswith(sys.prefix)][:3]
ours = sorted(name for name in sys.modules if name.split(".")[0] in ("robomimic", "robomimic_ddp"))
words = json.dumps([sys.argv[1:], path, launcher, ours, os.getsid(0) == os.getpid()])
sys.stdout.write(words + "\\n")  # at once: ranks write unbuffered
sys.stdout.flush()
if "fail" in sys.argv:
    raise ValueError("planted on purpose")
if "leave" in sys.argv:
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
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
def test_failures_and_leftovers_are_seen(cold: bool, started: Host, impatient: None) -> None:
    failed = python(started, "started", "fail", cold=cold)
    assert failed.returncode == 1 and "ValueError: planted on purpose" in failed.stderr
    left = python(started, "started", "leave", cold=cold)
    assert left.returncode == 0 and len(left.leftovers) == 1 and "sleep(100)" in left.leftovers[0]
    ended = torchrun(started, "started", "fail", cold=cold)
    assert ended.returncode == 1 and "exitcode  : 1" in ended.stderr.partition("Root Cause")[2]


def test_no_program_and_no_test_sees_a_gpu() -> None:
    """But tests/gpu, which give their programs one."""
    assert (
        os.environ["CUDA_VISIBLE_DEVICES"] == "" == hosts.environment(None)["CUDA_VISIBLE_DEVICES"]
    )
    assert os.environ[GPUS] and "," not in os.environ[GPUS]
