"""The host's own entry with `ddp.mode=fsdp`, on ranks of the pool: the run that DDP makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.errors import EXIT_REFUSED
from tests.configs import ConfigMaker
from tests.hosts import Host
from tests.ranks.hosted import job, require_finished
from tests.ranks.pool import RankPool
from tests.runs import epoch_logs, run_directory
from tests.versions import NEEDS_FSDP

pytestmark = pytest.mark.timeout(300)


def trained(pool: RankPool, host: Host, make: ConfigMaker, folder: Path, **ddp: Any) -> tuple:
    """(run directory, what the main rank printed) of a run with the options."""
    output = folder / "_".join(ddp.values())
    changes = {"ddp": ddp, "train": {"output_dir": str(output)}}
    config = make("diffusion_policy_images", changes)
    text = require_finished(job(pool, host, folder, config, "none"))
    return run_directory(output), text


@NEEDS_FSDP
@pytest.mark.slow
@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-4), ("bf16", 0.02)])
def test_the_run_is_that_of_ddp(
    precision: str,
    tolerance: float,
    host_ranks: RankPool,
    host_copy: Host,
    config_file: ConfigMaker,
    tmp_path: Path,
) -> None:
    """That its checkpoints are the host's: tests/e2e/test_checkpoints.py."""
    made = (host_ranks, host_copy, config_file, tmp_path)
    ddp, _ = trained(*made, mode="ddp", precision=precision)
    fsdp, text = trained(*made, mode="fsdp", precision=precision)
    assert "mode: FSDP2 (fully sharded), 2 rank(s)" in text
    assert "sharded: policy.obs_encoder in" in text and "policy.noise_pred_net in" in text
    outcome = json.loads((fsdp / "ddp.json").read_text())["outcome"]
    assert outcome["gradients_equal"] and outcome["noise_differs"]
    expected, found = epoch_logs(ddp), epoch_logs(fsdp)
    assert expected.keys() == found.keys() and len(found) == 4
    for key, log in found.items():
        assert log["Loss"] == pytest.approx(expected[key]["Loss"], rel=tolerance), key


@pytest.mark.bad_input
def test_other_algorithms_are_refused(
    host_ranks: RankPool, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("bc", {"ddp": {"mode": "fsdp"}})
    code, text = job(host_ranks, host_copy, tmp_path, file, "none")
    assert code == EXIT_REFUSED
    of_bc = "ddp.mode=fsdp is not possible with BC: it is for nets that are made parallel"
    lacks = fsdp.why_not("cpu")  # before any host is looked at
    assert (f"ddp.mode=fsdp is not possible: {lacks}" if lacks else of_bc) in text
