"""The harness that runs hosts sees what it must see: leftovers, hangs, and the shrunk net."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from tests.hosts import Host, installed_package, require_clean, run

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"],
                         start_new_session=True)
print(child.pid)
"""


def test_a_process_left_behind_is_reported_and_killed() -> None:
    result = run(None, sys.executable, "-c", LEAVES_A_CHILD)
    assert result.returncode == 0
    assert len(result.leftovers) == 1
    assert "time.sleep(100)" in result.leftovers[0]
    child = int(result.stdout)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    with pytest.raises(AssertionError, match="leftovers"):
        require_clean(result)


def test_a_hang_ends_with_the_stacks_of_its_threads() -> None:
    result = run(None, sys.executable, "-c", "import time\ntime.sleep(100)", timeout=1.0)
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
