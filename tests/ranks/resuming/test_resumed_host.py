"""The real host stopped or killed at a place of its run and continued: on as many ranks it ends as
the run that nothing interrupted, to the bit. tests/e2e/test_resume.py has the launcher's part.

Low-dim diffusion policy with EMA, validation and a schedule, two or three epochs of three steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from robomimic_ddp import checkpoint
from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.errors import EXIT_REFUSED, EXIT_STOPPED
from tests.hosts import Host
from tests.ranks.hosted import job, killed, require_finished, train_on_rank
from tests.ranks.pool import RankPool
from tests.runs import (
    captured,
    flat,
    load,
    newest,
    run_directory,
    same_bits,
    state_differences,
)

pytestmark = pytest.mark.timeout(600)
TWO_EPOCHS = {"num_epochs": 2}


@pytest.fixture(scope="module")
def config(four_epochs: Callable[..., Path]) -> Callable[..., Path]:
    return four_epochs


def test_three_ranks_to_the_bit(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """On three the order of a sum shows: it depends on where DDP puts its buckets."""
    folders = [tmp_path / name for name in ("whole", "killed")]
    files = [config(folder, train=TWO_EPOCHS) for folder in folders]
    require_finished(job(host_ranks, host_copy, folders[0], files[0], "none", ranks=3))
    call = (host_copy, folders[1], files[1], "all@5")
    killed(host_ranks, *call, ranks=3)
    assert list((folders[1] / "happened").iterdir())
    require_finished(job(host_ranks, *call, "--resume", ranks=3))
    assert state_differences(*map(newest, folders)) == []


def test_one_process_resumes_inside_an_epoch_to_the_bit(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """The host's own sampler and arithmetic, no launcher's variables."""
    states = {}
    for name, plan in (("whole", "none"), ("stopped", "0@SIGUSR1:5")):
        folder = tmp_path / name
        call = (host_ranks, host_copy, folder, config(folder, train=TWO_EPOCHS), plan)
        if plan != "none":
            code, text = job(*call, ranks=1, launched=False)
            assert code == EXIT_STOPPED, text
            assert newest(folder)["inside"]["steps"] == 2
            call = (*call, "--resume")
        require_finished(job(*call, ranks=1, launched=False))
        states[name] = newest(folder)
    assert state_differences(states["stopped"], states["whole"]) == []


def test_micro_batches_resume_inside_an_epoch_to_the_bit(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """Two ranks, two micro-batches; a pass of 43 windows has two steps of 16 samples."""
    states = {}
    for name, plan in (("whole", "none"), ("stopped", "0@SIGUSR1:7")):
        folder = tmp_path / name
        call = (
            host_ranks,
            host_copy,
            folder,
            config(folder, ddp={"accumulate": 2}, train={"num_epochs": 3}),
        )
        done = job(*call, plan)
        if plan != "none":
            assert newest(folder)["inside"]["steps"] == 2, done
            assert done[0] == EXIT_STOPPED
            done = job(*call, "none", "--resume")
        text = require_finished(done)
        assert "batch: 4 per rank x 2 x 2 micro-batches = 16 samples per step" in text
        states[name] = newest(folder)
    assert states["whole"]["steps"] == 9 and states["whole"]["samples_per_step"] == 16
    counters = states["whole"]["model"][""]["ema"]["numbers"]
    assert counters["optimization_step"] == 9
    assert state_differences(states["stopped"], states["whole"]) == []
    lines = (run_directory(folder / "runs") / "history.jsonl").read_text().splitlines()
    trained = [json.loads(line) for line in lines if '"train"' in line]
    assert [line["epoch"] for line in trained] == [1, 2, 3]
    for line in trained:
        before = 2 if line["epoch"] == 2 else 0  # steps of the job that was stopped
        rate = line["samples_per_second"] * line["seconds"]
        assert rate == pytest.approx((line["steps"] - before) * 16)
        assert line["log"]["Policy_Grad_Norms"] > 0


def train_and_print_digest(*call: Any) -> tuple[int, str]:
    """As `train_on_rank`; the main rank prints the digest of what it has restored."""
    restore = checkpoint.restore_model

    def restore_and_print(algo: Any, state: Any) -> None:
        restore(algo, state)
        found = captured(algo)
        if group.is_main():
            print(f"restored {state_file.digest(found)}")

    with mock.patch.object(checkpoint, "restore_model", restore_and_print):
        return train_on_rank(*call)


def test_shards_become_other_shards_and_whole_nets(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """An epoch each: sharded over 2 ranks, DDP on 3, and shards again. What is restored has the
    digest of what was saved, and the host's checkpoint its nets. An older torch has DDP in place of
    shards.
    """
    saved, before, sharded = None, 0, "ddp" if fsdp.why_not("cpu") else "fsdp"
    for epoch, (mode, ranks) in enumerate([(sharded, 2), ("ddp", 3), (sharded, 2)], start=1):
        file = config(tmp_path, ddp={"mode": mode}, train={"num_epochs": epoch})
        more = ("--resume",) if saved else ()
        call = (host_ranks, host_copy, tmp_path, file, "none", *more)
        text = require_finished(job(*call, ranks=ranks, train=train_and_print_digest))
        if saved:
            assert f"restored {state_file.digest(saved)}" in text
            assert before == ranks or f"world size: {before} -> {ranks}" in text
        state, before = newest(tmp_path), ranks
        assert state["epoch"] == epoch and state["steps"] == 3 * epoch
        assert state["world_size"] == len(state["ranks"]) == ranks
        saved = state["model"]
        exported = load(run_directory(tmp_path / "runs") / "last.pth")["model"]
        for part, name in (("nets", "nets"), ("ema", "ema_nets")):
            pairs = zip(flat(exported[part]), flat(saved[""][name]))
            assert all(one[0] == two[0] and same_bits(one[1], two[1]) for one, two in pairs)


def test_auto_after_a_kill_in_the_first_epoch_to_the_bit(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """The host has written last.pth, and the state is not there yet."""
    states, settings = [], {"ddp": {"resume": "auto"}, "train": TWO_EPOCHS}
    for name in ("whole", "killed"):
        folder = tmp_path / name
        call = (host_ranks, host_copy, folder, config(folder, **settings))
        if name == "killed":
            killed(*call, "all@4")
            directory = run_directory(folder / "runs")
            assert newest(folder)["epoch"] == 1 and (directory / "last.pth").exists()
            for state in directory.glob("ddp_state*"):
                state.unlink()
        text = require_finished(job(*call, "none"))
        states.append(newest(folder))
    assert "no epoch was finished: training starts over" in text
    assert state_differences(*states) == []


def test_a_host_without_resume_gets_it(
    droid_copy: Host, own_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    """DROID's shape: no flag, a data iterator that outlives epochs, other paths of a run."""
    states = {}
    for name, plan in (("whole", "none"), ("broken", "all@5")):
        folder = tmp_path / name
        call = (own_ranks, droid_copy, folder, config(folder, train=TWO_EPOCHS), plan)
        if plan == "none":
            require_finished(job(*call))
        else:
            killed(*call)
            text = require_finished(job(*call, added={"ROBOMIMIC_DDP_RESUME": "true"}))
            assert "resuming training from epoch 2" in text
            assert "data: pass 1 resumes after" in text
        states[name] = newest(folder)
    assert state_differences(states["broken"], states["whole"]) == []


def test_nothing_to_resume_is_one_clear_error(
    host_copy: Host, host_ranks: RankPool, config: Any, tmp_path: Path
) -> None:
    code, text = job(host_ranks, host_copy, tmp_path, config(tmp_path), "none", "--resume")
    assert code == EXIT_REFUSED
    assert text.count("error: nothing to resume: no folder in") == 1, text
    assert not (tmp_path / "runs").exists()
