"""ddp.debug on two real ranks: each tells what it trains; an empty batch names its rank."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest

from robomimic_ddp.config.monkeypatch import swapped
from tests.faults.toy_run import BATCH, ToyJob, train
from tests.ranks.pool import RankError


def printed_lines(options):
    """The lines of this rank on the real stdout and, where it is the main rank, on its own."""
    printed = io.StringIO()
    job = ToyJob({"config": lambda job: job.options.update(options)})
    with swapped(sys, "__stdout__", printed), contextlib.redirect_stdout(printed):
        train(job)
    return [line for line in printed.getvalue().splitlines() if line.startswith("[rank")]


def test_every_rank_prints_its_parameters_its_data_and_its_first_step(ranks):
    assert ranks.run(printed_lines, {}) == [[], []]
    of_ranks = []
    for rank, lines in enumerate(ranks.run(printed_lines, {"debug": True})):
        assert all(line.startswith(f"[rank {rank}/2] ") for line in lines)
        text = "\n".join(lines)
        assert "trainable parameters: policy.obs_encoder 30, policy.noise_pred_net" in text
        assert f"first batch: obs float32 [{BATCH}, 4], actions float32 [{BATCH}, 4]" in text
        assert re.search(r"data: \d+ batches a pass of \d+ samples over all ranks", text)
        of_ranks.append(
            (
                *re.findall(rf"step 0, batch {BATCH}, loss ([\d.e+-]+), device cpu", text),
                *re.findall(r"this rank's order: (\w+)", text),
            )
        )
    assert [len(numbers) for numbers in of_ranks] == [2, 2]
    assert all(zero != one for zero, one in zip(*of_ranks))


def empty_on_one_rank():
    def plant(job):
        if job.rank == 1:
            job.change_batch = lambda batch: {key: value[:0] for key, value in batch.items()}

    train(ToyJob({"epoch begins": plant}))


def test_an_empty_batch_names_its_rank(ranks):
    with pytest.raises(RankError, match="rank 1 of 2, epoch 1: the batch is empty") as caught:
        ranks.run(empty_on_one_rank, world_size=2)
    assert "DataError" in caught.value.by_rank[1]
