"""What happens to a rank's data or reader while two ranks train: one clear error, and an end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.distributed import rendezvous
from tests.configs import make_rlds_config, write_config
from tests.hosts import FINISHED, Host, require_clean, require_soon, run, torchrun

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
SMALL_SHM = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


@pytest.fixture
def config(demo_dataset: Path, tmp_path: Path) -> Path:
    """Two passes over a copy of the data that may be damaged, its index made, and a buffer so small
    that files are read all the time.
    """
    shutil.copytree(demo_dataset, tmp_path / "data")
    train = {"batch_size": 4, "num_epochs": 2, "shuffle_buffer_size": 16}
    changes = {"experiment": {"epoch_every_n_steps": 40, "validate": False}, "train": train}
    made = make_rlds_config(tmp_path / "data", tmp_path / "runs", changes)
    return write_config(tmp_path / "config.json", made)


@pytest.mark.planted_fault
def test_a_reader_that_is_killed_is_one_clear_error_and_an_end(config, host_copy):
    """And a fork of the rank has left it alone. Other faults: tests/rlds/reading/test_reader.py,
    test_damages.py; tests/bad_input.
    """
    words = ["forked and killed", f"load_from={config}"]
    result = torchrun(host_copy, "tests.e2e.entries.faulty_rlds", *words, timeout=300)
    assert result.returncode != 0 and not result.leftovers, result
    assert result.stderr.count("fork at time") == result.stderr.count("kill at time") == 1, result
    require_soon(result)
    cause = result.stderr.partition("Root Cause")[2]
    words = ("rank 1: ", "was killed by SIGKILL", "lack of memory")
    assert all(text in cause for text in words), cause
    assert FINISHED not in result.stdout and not result.abort_texts(), result


@pytest.mark.slow
def test_no_room_in_dev_shm_is_no_matter(config: Path, host_copy: Host) -> None:
    """Docker gives a container 64 MB; where they are full, torch's data workers end by a bus
    error. That readers map nothing there: tests/e2e/rlds/test_two_ranks_rlds.py.
    """
    inside: list[Any] = ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this user may not mount file systems")
    launcher = ["-m", "torch.distributed.run", *rendezvous.on_this_machine(), "--nproc_per_node=2"]
    words = ["-m", "tests.e2e.entries.faulty_rlds", "none", f"load_from={config}"]
    result = run(host_copy, *inside, sys.executable, *launcher, *words, timeout=300)
    require_clean(result)
    assert FINISHED in result.stdout, result
