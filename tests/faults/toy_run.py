"""One epoch of training as an edited host does it, small enough for a hundredth of a second.

The lines are those of a patched host (`session.start`, `api.parallel`, `api.train_loader`,
`api.epochs`, `api.epoch_log`); the algorithm, its nets and its data are of a few numbers. At named
moments a fault may be planted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from robomimic_ddp import api
from robomimic_ddp.config.host import host_config
from robomimic_ddp.distributed import group
from robomimic_ddp.training import session
from tests.ranks.toy import Encoder
from tests.section import Section

STEPS, BATCH, SAMPLES, SEED = 4, 4, 96, 7
MOMENTS = (
    "config",
    "data",
    "loader",
    "construction",
    "epoch begins",
    "step",
    "backward",
    "stepped",
    "epoch ends",
)
"""When a fault may be planted. The three of a step come at each of an epoch's STEPS."""


class Numbers(torch.utils.data.Dataset):
    """SAMPLES rows of random numbers, equal on every rank."""

    def __init__(self) -> None:
        self.rows = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        self.action_normalization_stats = {"actions": {"scale": np.ones((1, 4), np.float32)}}
        self.hdf5_path: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"obs": self.rows[index], "actions": self.rows[index] ** 2, "index": index}


class Average:
    """As diffusers' EMAModel: a step count and shadow parameters."""

    def __init__(self, nets: nn.Module) -> None:
        self.optimization_step = 0
        self.shadow_params = [parameter.detach().clone() for parameter in nets.parameters()]

    def step(self, nets: nn.Module, averaged: nn.Module) -> None:
        self.optimization_step += 1
        every = zip(self.shadow_params, nets.parameters(), averaged.parameters())
        for shadow, parameter, copied in every:
            shadow.lerp_(parameter.detach(), 0.1)
            copied.data.copy_(shadow)


class ToyAlgo:
    """The diffusion policy in small: two nets, noise to predict, an average, a schedule."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.loss_weight = 1.0
        head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Dropout(0.0))
        nets = {"obs_encoder": api.parallel(Encoder()), "noise_pred_net": api.parallel(head)}
        self.nets = nn.ModuleDict({"policy": nn.ModuleDict(nets)})
        optimizer = torch.optim.AdamW(self.nets.parameters(), lr=1e-2)
        self.optimizers = {"policy": optimizer}
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        self.lr_schedulers = {"policy": schedule}
        self.ema = Average(self.nets)
        self.ema_nets = copy.deepcopy(self.nets).requires_grad_(False)

    def process_batch_for_training(self, batch: dict) -> dict:
        return batch

    def predict(self, batch: dict) -> torch.Tensor:
        policy = self.nets["policy"]
        return policy["noise_pred_net"](policy["obs_encoder"](batch["obs"]))

    def loss(self, batch: dict) -> torch.Tensor:
        noise = torch.randn(len(batch["actions"]), 4)
        noise = noise + float(np.random.normal())  # stands for an augmentation
        return self.loss_weight * (self.predict(batch) - noise).pow(2).mean()

    def train_on_batch(self, batch: dict) -> dict:
        job, optimizer = self.job, self.optimizers["policy"]
        optimizer.zero_grad()
        job.reach("step")
        loss = job.loss(batch)
        loss.backward()
        job.reach("backward")
        if not job.skip_step:
            optimizer.step()
        self.ema.step(self.nets, self.ema_nets)
        job.reach("stepped")
        return {"Loss": loss.item()}

    def on_gradient_step(self) -> None:
        if not self.job.skip_schedule:
            self.lr_schedulers["policy"].step()

    def log_info(self, info: dict) -> dict:
        return info


@api.epoch_log
def run_epoch(model: Any, data_loader: Any, epoch: int, validate: bool = False, num_steps: int = 0):
    """The host's loop."""
    batches = iter(data_loader)
    for model.job.step_number in range(num_steps):
        batch = model.process_batch_for_training(model.job.change_batch(next(batches)))
        model.log_info(model.train_on_batch(batch))
        model.on_gradient_step()
    return {}


class ToyJob(SimpleNamespace):
    """What a fault may reach into: config, dataset, loader_of, loader, algo, loss, rank, ..."""

    def __init__(self, plants: dict[str, Callable[[Any], None]]) -> None:
        assert set(plants) <= set(MOMENTS)
        super().__init__(plants=plants, rank=group.rank(), step_number=0, steps=STEPS)
        self.fine_tuning = self.skip_step = self.skip_schedule = False
        self.options: dict = {}
        self.change_batch: Callable = lambda batch: batch
        self.config = Section(
            train=Section(batch_size=BATCH, seed=SEED), experiment=Section(name="toy")
        )

    def reach(self, moment: str) -> None:
        """Plants what is to be planted at this moment."""
        if moment in self.plants:
            self.plants[moment](self)


def train(job: ToyJob) -> None:
    """Collective: the first epoch."""
    job.reach("config")  # by the variables of the launcher: the group may not be there yet
    host_config.attach_notes(job.config, host_config.Notes(file_options=job.options))
    with ExitStack() as stack:
        present = stack.enter_context(
            session.start(job.config, use_cuda=False, fine_tuning=job.fine_tuning)
        )
        stack.enter_context(present.stopper.scope())
        torch.manual_seed(job.config.train.seed)
        np.random.seed(job.config.train.seed)
        job.dataset = Numbers()
        job.reach("data")
        job.loader = api.train_loader(dataset=job.dataset, batch_size=BATCH, shuffle=True)
        job.reach("loader")
        present.built.loaders["train"] = job.loader
        job.algo = ToyAlgo(job)
        job.loss = job.algo.loss
        job.reach("construction")
        for epoch in api.epochs(range(1, 2), job.algo):
            job.reach("epoch begins")
            run_epoch(job.algo, job.loader, epoch, num_steps=job.steps)
            job.reach("epoch ends")
