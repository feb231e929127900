"""ddp.debug on two real ranks: each tells what it trains; an empty batch names its rank."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest

from robomimic_ddp.config.monkeypatch import swapped
from tests.faults.toy_run import BATCH, STEPS, ToyJob, train
from tests.ranks.pool import RankError


def output_of_training(**options):
    """What this rank prints to the real stdout and, where it is the main rank, to its own."""
    printed = io.StringIO()
    job = ToyJob({"config": lambda job: job.options.update(options)})
    with swapped(sys, "__stdout__", printed), contextlib.redirect_stdout(printed):
        train(job)
    return printed.getvalue().splitlines()


def test_every_rank_has_its_lines(ranks):
    outputs = ranks.run(output_of_training, world_size=2)
    assert not [line for output in outputs for line in output if line.startswith("[rank")]
    reported = {"debug": "true:2"}
    outputs = ranks.run(telling, reported, world_size=2)
    losses, firsts = [], []
    for rank, output in enumerate(outputs):
        lines = [line for line in output if line.startswith("[rank")]
        assert all(line.startswith(f"[rank {rank}/2] ") for line in lines)
        text = "\n".join(lines)
        assert "trainable parameters: policy.obs_encoder 30, policy.noise_pred_net" in text
        assert f"first batch: obs float32 [{BATCH}, 4], actions float32 [{BATCH}, 4]" in text
        steps = re.findall(r"step (\d+), batch (\d+), loss ([\d.e+-]+), device cpu", text)
        assert [int(step) for step, _, _ in steps] == list(range(0, STEPS, 2))
        assert {int(batch) for _, batch, _ in steps} == {BATCH}
        losses.append([loss for _, _, loss in steps])
        assert re.search(r"data: \d+ batches a pass of \d+ samples over all ranks", text)
        held = re.search(r"this rank has \d+ samples, the first of them ([\d, ]+)", text)
        firsts.append(set(held.group(1).split(", ")))
    assert losses[0] != losses[1] and not firsts[0] & firsts[1]
    orders = [re.search(r"this rank's order: (\w+)", "\n".join(output)) for output in outputs]
    assert orders[0].group(1) != orders[1].group(1)


def telling(options):
    return output_of_training(**options)


def empty_on_one_rank():
    def plant(job):
        if job.rank == 1:
            job.change_batch = lambda batch: {key: value[:0] for key, value in batch.items()}

    train(ToyJob({"epoch begins": plant}))


def test_an_empty_batch_names_its_rank(ranks):
    with pytest.raises(RankError, match="rank 1 of 2, epoch 1: the batch is empty") as caught:
        ranks.run(empty_on_one_rank, world_size=2)
    assert "DataError" in caught.value.by_rank[1]
