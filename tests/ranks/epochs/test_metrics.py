"""Several ranks: the log of an epoch is that of all samples, alike everywhere, for any host.

The host's own training epoch: test_resumed_run.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robomimic_ddp.data.sampling import train_loader, valid_loader
from robomimic_ddp.distributed import group
from robomimic_ddp.monitoring.metrics import mean_over_ranks
from robomimic_ddp.monitoring.step_logs import BatchLogs
from tests.ranks.hosts import (
    SIZE,
    Algo,
    a_loader,
    epoch_log,
    flat_mean,
    other_order_run_epoch,
    real_run_epoch,
)
from tests.ranks.pool import RankError


def validate_with_host(num_steps, batch_size=4):
    algo, run_epoch = Algo(), epoch_log(real_run_epoch())
    loader = a_loader(valid_loader, shuffle=False, batch_size=batch_size)
    log = run_epoch(algo, loader, 1, validate=True, num_steps=num_steps)
    assert not vars(algo).keys() & {"log_info", "process_batch_for_training"}
    return log, algo.seen


def train_and_validate_with_iterator():
    algo, run_epoch = Algo(), epoch_log(other_order_run_epoch)
    loader, iterator = a_loader(train_loader, shuffle=True, batch_size=2), None
    logs = []
    for epoch in range(2):
        log, iterator = run_epoch(
            algo, epoch, loader, data_loader_iter=iterator, num_steps=3, note="kept"
        )
        logs.append(log)
    seen, algo.seen = algo.seen, []
    valid, _ = run_epoch(algo, 9, a_loader(valid_loader, False), None, True, iter(loader))
    return logs, seen, valid, algo.seen


def uneven_ranks():
    """Rank 0 has no batch; ranks 1 and 2 log different keys for batches of different sizes."""
    logs = BatchLogs()
    batches = [[], [(1, {"Loss": 1.0}), (3, {"Loss": 2.0, "Odd": 5.0})], [(2, {"Loss": 4.0})]]
    for samples, log in batches[group.rank()]:
        logs.see(log, {"actions": torch.zeros(samples)})
    host = flat_mean([log for _, log in batches[group.rank()]])
    host["Time_Epoch"] = float(group.rank())
    if group.rank() == 2:
        host["Note"] = "text"
    return mean_over_ranks(host, logs, continued=False)


def log_before_batch(model, data_loader, epoch, validate=False, num_steps=None):
    model.log_info({"losses": torch.ones(()), "large": False})


def without_model(algo, data_loader, epoch):
    return {}


def failing(model, data_loader, epoch, validate=False, num_steps=None):
    raise ValueError("in the epoch")


def run_of(run_epoch):
    algo = Algo()
    try:
        epoch_log(run_epoch)(algo, [], 1)
    except ValueError:
        return vars(algo)


@pytest.mark.parametrize("world_size, num_steps", [(2, 1), (2, 100), (3, None), (3, 2)])
def test_validation_counts_each_sample_once(ranks, world_size, num_steps):
    # The first call imports robomimic in each worker, which takes long on a busy machine.
    results = ranks.run(validate_with_host, num_steps, world_size=world_size, timeout=115.0)
    wanted = SIZE if num_steps is None else min(SIZE, 4 * num_steps)
    assert sorted(i for _, seen in results for i in seen) == list(range(wanted))
    expected = float(np.mean(np.arange(wanted) ** 2.0))
    logs = [log for log, _ in results]
    assert logs[0]["Loss"] == pytest.approx(expected, rel=1e-6)
    assert all(log == logs[0] and list(log) == list(logs[0]) for log in logs)
    assert list(logs[0])[0] == "Loss" and "Time_Epoch" in logs[0]


def test_a_rank_without_validation_samples_takes_part(ranks):
    (log, seen), (other_log, of_other) = ranks.run(validate_with_host, 1, 1, timeout=115.0)
    assert (seen, of_other) == ([0], []) and log == other_log and log["Loss"] == 0.0


def test_a_host_with_an_iterator_and_another_argument_order(ranks):
    results = ranks.run(train_and_validate_with_iterator)
    assert results[0][0] == results[1][0] and results[0][2] == results[1][2]
    logs, _, valid, _ = results[0]
    # 11 samples: 2 batches per rank and pass, so three steps run into the second pass.
    assert [len(seen) for _, seen, _, _ in results] == [12, 12]
    for number, log in enumerate(logs):
        seen = [i for _, s, _, _ in results for i in s[6 * number : 6 * number + 6]]
        assert log["Loss"] == pytest.approx(np.mean(np.square(seen)), rel=1e-6)
        assert log["Time_Epoch"] == 2.0 and log["note"] == "kept"
    assert sorted(i for _, _, _, seen in results for i in seen) == list(range(SIZE))
    assert valid["Loss"] == pytest.approx(np.mean(np.arange(SIZE) ** 2.0), rel=1e-6)
    assert valid["Large"] == 1.0


def test_keys_of_some_ranks_and_a_main_rank_without_batches(ranks):
    logs = ranks.run(uneven_ranks, world_size=3)
    assert logs[0] == logs[1] == logs[2]
    assert list(logs[0].items()) == [
        ("Loss", (1 * 1.0 + 3 * 2.0 + 2 * 4.0) / 6),
        ("Odd", 5.0),
        ("Time_Epoch", 1.0),
        ("Note", "text"),
    ]


def test_after_an_exception_the_model_is_as_it_was(ranks):
    assert ranks.run(run_of, failing) == [{"seen": []}] * 2


@pytest.mark.parametrize(
    ("run_epoch", "text"),
    [
        (log_before_batch, "before model.process_batch_for_training"),
        (without_model, "no parameter 'model'"),
    ],
)
def test_a_host_that_cannot_be_averaged_is_a_clear_error(ranks, run_epoch, text):
    with pytest.raises(RankError) as caught:
        ranks.run(run_of, run_epoch)
    assert all(text in caught.value.by_rank[rank] for rank in range(2))
