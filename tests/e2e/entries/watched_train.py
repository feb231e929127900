"""Runs the host's train script and writes down what this rank did; can plant a fault on one rank.

    torchrun ... -m tests.e2e.entries.watched_train REPORTS FAULT --config cfg.json

Writes REPORTS/rank<k>.json after a run that ended well. FAULT is "none" or "<where>@<rank>" with
where is a name given to `Watch.fail`. Only functions around the host's are replaced; what the
retrofit edited runs as it stands.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import robomimic.scripts.train as host_train
import robomimic.utils.dataset as host_dataset
import torch

from tests.e2e.entries.host_entry import train
from tests.runs import digests


class PlantedFault(Exception):
    """Raised on purpose."""


RANK = int(os.environ.get("RANK", "0"))
STEP_OF_FAULT = 2


class Watch:
    """What this rank did: the model, the indices it read, its logs; and the fault it is to have."""

    def __init__(self, fault: str) -> None:
        where, _, rank = fault.partition("@")
        self.where = where if rank and int(rank) == RANK else "none"
        self.model: Any = None
        self.indices: list[int] = []
        self.logs: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.steps = 0
        self.is_in_epoch = False

    def fail(self, where: str) -> None:
        """Raises where the fault was planted."""
        if self.where == where:
            raise PlantedFault(f"planted at {where} on rank {RANK} at time {time.time()}")

    def end_at(self, step: int) -> None:
        """Kills this rank, or lets it hang, where that was planted."""
        if step != STEP_OF_FAULT:
            return
        if self.where == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.where == "hang":
            time.sleep(3600)

    def install(self) -> None:
        """Puts the watch around the host's functions."""
        around(host_train, "algo_factory", self.construct)
        around(host_dataset.SequenceDataset, "__getitem__", self.read)
        around(host_train.TrainUtils, "run_epoch", self.epoch)
        around(host_train.TrainUtils, "save_model", self.save)
        for owner, name, where in (
            (host_train.TrainUtils, "get_exp_dir", "run_directory"),
            (host_train.TrainUtils, "load_data_for_training", "datasets"),
        ):
            around(owner, name, functools.partial(self.call, where))

    def construct(self, factory: Callable, *args: Any, **kwargs: Any) -> Any:
        self.model = factory(*args, **kwargs)
        around(self.model, "train_on_batch", self.step)
        around(self.model, "log_info", functools.partial(self.call, "log"))
        return self.model

    def call(self, where: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
        self.fail(where)
        return function(*args, **kwargs)

    def read(self, getitem: Callable, dataset: Any, index: int) -> Any:
        # Before the first epoch a few items are read to know the data again after a resume.
        if dataset.filter_by_attribute == "train" and self.is_in_epoch:
            self.indices.append(int(index))
        return getitem(dataset, index)

    def step(self, train_on_batch: Callable, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        if self.steps == STEP_OF_FAULT:
            self.fail("step")
        self.end_at(self.steps)
        if kwargs.get("validate"):
            self.fail("validation")
        info = train_on_batch(*args, **kwargs)
        self.losses.append(float(sum(loss.item() for loss in info["losses"].values())))
        return info

    def epoch(self, run_epoch: Callable, *args: Any, **kwargs: Any) -> Any:
        self.is_in_epoch = True
        result = run_epoch(*args, **kwargs)
        self.is_in_epoch = False
        log = result[0] if isinstance(result, tuple) else result  # DROID: (log, data iterator)
        self.logs.append({k: v for k, v in log.items() if not k.startswith("Time_")})
        return result

    def save(self, save_model: Callable, *args: Any, **kwargs: Any) -> Any:
        self.fail("save")
        return save_model(*args, **kwargs)

    def report(self) -> dict[str, Any]:
        """All of it as JSON values, tensors as digests."""
        return {
            "rank": RANK,
            "parameters": digests(self.model.nets.state_dict()),
            "ema": digests(self.model.ema_nets.state_dict()),
            "torch_random": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
            "indices": self.indices,
            "losses": self.losses,
            "logs": self.logs,
        }


def around(owner: Any, name: str, wrapper: Callable) -> None:
    """Replaces `owner.name` by a call of `wrapper(original, ...)`, for this process's life."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", type=Path)
    parser.add_argument("fault")
    parser.add_argument("--config")
    given = parser.parse_args(sys.argv[1:])
    watch = Watch(given.fault)
    watch.install()
    train(given.config)
    given.reports.mkdir(exist_ok=True)
    (given.reports / f"rank{RANK}.json").write_text(json.dumps(watch.report()))


if __name__ == "__main__":
    main()
