"""The host's own entry with `ddp.mode=fsdp`, on ranks of the pool: the run that DDP makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from robomimic_ddp.errors import EXIT_REFUSED
from tests.configs import ConfigMaker
from tests.hosts import FINISHED, Host
from tests.ranks.hosted import train_on_rank
from tests.ranks.pool import RankPool
from tests.runs import checkpoints, epoch_logs, load, run_directory

pytestmark = pytest.mark.timeout(300)


def job(pool: RankPool, host: Host, folder: Path, file: Path) -> tuple[int, str]:
    """The exit code of both ranks, and what the main rank printed."""
    call = (str(host.folder), "tests.e2e.killed_train", True, "none", str(folder / "happened"))
    done = pool.run(train_on_rank, *call, "--config", str(file), timeout=150)
    assert done[0][0] == done[1][0], done
    return done[0]


def trained(pool: RankPool, host: Host, make: ConfigMaker, folder: Path, **ddp: Any) -> tuple:
    """(run directory, what the main rank printed) of a run with the options."""
    output = folder / "_".join(map(str, ddp.values()))
    changes = {"ddp": ddp, "train": {"output_dir": str(output)}}
    code, text = job(pool, host, folder, make("diffusion_policy_images", changes))
    assert code == 0 and FINISHED in text, text
    return run_directory(output), text


@pytest.mark.slow
def test_the_run_is_that_of_ddp(
    host_ranks: RankPool, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    made = (host_ranks, host_copy, config_file, tmp_path)
    ddp, _ = trained(*made, mode="ddp")
    fsdp, text = trained(*made, mode="fsdp")
    assert "mode: FSDP2 (fully sharded), 2 rank(s)" in text
    assert "sharded: policy.obs_encoder in" in text and "policy.noise_pred_net in" in text
    outcome = json.loads((fsdp / "ddp.json").read_text())["outcome"]
    assert outcome["gradients_equal"] and outcome["noise_differs"]
    expected, found = epoch_logs(ddp), epoch_logs(fsdp)
    assert expected.keys() == found.keys() and len(found) == 4
    for key, log in found.items():
        assert log == pytest.approx(expected[key], rel=1e-4), key
    of_ddp, of_fsdp = (sorted(checkpoints(one).items()) for one in (ddp, fsdp))
    assert len(of_ddp) == len(of_fsdp) > 0
    for (_, one), (_, other) in zip(of_ddp, of_fsdp):
        one, other = load(one)["model"], load(other)["model"]
        assert list(one["nets"]) == list(other["nets"])
        for part in ("nets", "ema"):
            for name, tensor in other[part].items():
                assert type(tensor) is torch.Tensor
                torch.testing.assert_close(tensor, one[part][name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_bf16(
    host_ranks: RankPool, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    made = (host_ranks, host_copy, config_file, tmp_path)
    ddp, _ = trained(*made, mode="ddp", precision="bf16")
    fsdp, _ = trained(*made, mode="fsdp", precision="bf16")
    for key, log in epoch_logs(fsdp).items():
        assert log["Loss"] == pytest.approx(epoch_logs(ddp)[key]["Loss"], rel=0.02), key


@pytest.mark.bad_input
def test_other_algorithms_are_refused(
    host_ranks: RankPool, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("bc", {"ddp": {"mode": "fsdp"}})
    code, text = job(host_ranks, host_copy, tmp_path, file)
    assert code == EXIT_REFUSED
    assert "ddp.mode=fsdp is not possible with BC: it is for nets that are made parallel" in text
