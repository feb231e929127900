"""Hosts in small for ranks of the pool: an algorithm, loaders, and kinds of `run_epoch`."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from robomimic_ddp.distributed import group
from robomimic_ddp.monitoring.step_logs import EpochPart
from robomimic_ddp.training import epoch
from tests.ranks.running import running

SIZE = 11


class Squares(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"obs": {"x": torch.ones(2)}, "actions": torch.tensor([float(index) ** 2])}


class Algo:
    """What run_epoch needs of an Algo: its loss is the mean of the actions."""

    def __init__(self):
        self.seen = []

    def set_train(self):
        self.training = True

    def set_eval(self):
        self.training = False

    def process_batch_for_training(self, batch):
        return {"renamed": batch["actions"]}

    def postprocess_batch_for_training(self, batch, obs_normalization_stats):
        return batch

    def train_on_batch(self, batch, epoch, validate=False):
        self.seen += batch["renamed"].flatten().sqrt().round().int().tolist()
        return {"losses": batch["renamed"].mean(), "large": bool((batch["renamed"] > 90).any())}

    def on_gradient_step(self):
        pass

    def log_info(self, info):
        log = {"Loss": info["losses"].item()}
        if info["large"]:
            log["Large"] = 1.0
        return log


def flat_mean(step_logs):
    keys = dict.fromkeys(key for log in step_logs for key in log)
    return {key: float(np.mean([log[key] for log in step_logs if key in log])) for key in keys}


def other_order_run_epoch(
    model, epoch, data_loader, num_steps=None, validate=False, data_loader_iter=None, **extra
):
    """A host with another argument order, an iterator that lives on, and no reading of None."""
    iterator = iter(data_loader) if data_loader_iter is None else data_loader_iter
    logs = []
    for _ in range(num_steps):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(data_loader)
            batch = next(iterator)
        info = model.train_on_batch(model.process_batch_for_training(batch), epoch)
        logs.append(model.log_info(info))
    return {**flat_mean(logs), "Time_Epoch": 1.0 + 2 * group.rank(), **extra}, iterator


def real_run_epoch():
    """The installed host's own."""
    from robomimic.utils import train_utils

    return train_utils.run_epoch


def a_loader(make, shuffle, batch_size=4):
    kwargs = {"dataset": Squares(), "batch_size": batch_size, "shuffle": shuffle}
    place = {"rank": group.rank(), "world_size": group.world_size()}
    return make(DataLoader, kwargs, **place, seed=0, batch_size_per_rank=batch_size)


@contextlib.contextmanager
def started(part=None):
    """A run of this rank whose train epoch has done `part`; the host's steps are not shortened."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as run:
        run.progress.part = part or EpochPart()
        yield run


def epoch_log(run_epoch, part=None):
    """`DDPUtils.epoch_log(run_epoch)`, each call in a run."""

    def call(*args, **kwargs):
        with started(part):
            return epoch.epoch_log(run_epoch)(*args, **kwargs)

    return call
