"""Trains the host's diffusion policy a few steps on one rank of several.

`tests.parity.reference` does the same in one process that stands for all of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from robomimic_ddp import api, train_rlds
from robomimic_ddp.training import host_config, run


class Job(NamedTuple):
    """`steps` steps of the edited host in folder `host` with the configuration file `settings`.

    max_grad_norm: goes to the host's `backprop_for_loss`, which clips; its diffusion policy leaves
    `train.max_grad_norm` unread.
    """

    host: str
    settings: str
    steps: int
    max_grad_norm: float | None = None

    def clipping(self) -> AbstractContextManager:
        """Gradients are clipped inside."""
        if self.max_grad_norm is None:
            return nullcontext()
        import robomimic.utils.torch_utils as TorchUtils

        clipped = partial(TorchUtils.backprop_for_loss, max_grad_norm=self.max_grad_norm)
        return mock.patch.object(TorchUtils, "backprop_for_loss", clipped)


def use_host(host: str) -> None:
    """Puts the edited copy of the host first, and makes sure that it is the one imported."""
    if host not in sys.path:
        sys.path.insert(0, host)
    import robomimic

    assert robomimic.__file__.startswith(host), (
        f"another robomimic was imported before: {robomimic.__file__}"
    )


def build(settings: str) -> SimpleNamespace:
    """What the host's train() builds, in its order: seeds, datasets, loader arguments, model."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    import robomimic.utils.train_utils as TrainUtils
    from robomimic.algo import algo_factory

    config, _ = train_rlds.build_config([f"load_from={settings}"])
    host_config.fill_rlds_data(config)
    np.random.seed(config.train.seed)
    torch.manual_seed(config.train.seed)
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = FileUtils.get_shape_metadata_from_dataset(
        config.train.data[0], action_keys=config.train.action_keys, all_obs_keys=config.all_obs_keys
    )
    trainset, _ = TrainUtils.load_data_for_training(config, obs_keys=shapes["all_obs_keys"])
    loader_arguments = dict(
        dataset=trainset,
        sampler=trainset.get_dataset_sampler(),
        batch_size=config.train.batch_size,
        shuffle=trainset.get_dataset_sampler() is None,
        num_workers=0,
        drop_last=True,
    )
    with config.values_unlocked():
        for section in config.algo.optim_params.values():
            section["num_train_batches"], section["num_epochs"] = 10, config.train.num_epochs
    model = algo_factory(
        config.algo_name,
        config,
        obs_key_shapes=shapes["all_shapes"],
        ac_dim=shapes["ac_dim"],
        device=torch.device("cpu"),
    )
    return SimpleNamespace(config=config, model=model, loader_arguments=loader_arguments)


def only_forward(model: Any, batch: dict) -> None:
    """The forward of a step, in training mode; nothing is learned."""
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    model.train_on_batch(prepared, epoch=1, validate=True)


def one_step(model: Any, batch: dict) -> float:
    """The body of the host's run_epoch; the loss."""
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    info = model.train_on_batch(prepared, epoch=1)
    model.on_gradient_step()
    return model.log_info(info)["Loss"]


def result_of(model: Any, losses: list) -> dict:
    """Losses, nets, averaged nets and the optimizer's moments, by name."""
    optimizer = model.optimizers["policy"].state_dict()["state"]
    moments = {
        f"{index}.{key}": torch.as_tensor(value).clone()
        for index, entry in optimizer.items()
        for key, value in entry.items()
    }
    return {
        "losses": losses,
        "nets": {name: tensor.clone() for name, tensor in model.nets.state_dict().items()},
        "ema": {name: tensor.clone() for name, tensor in model.ema_nets.state_dict().items()},
        "optimizer": moments,
        "lr": model.optimizers["policy"].param_groups[0]["lr"],
    }


def train_on_rank(job: Job) -> dict:
    """Collective: the job through the patched host's own lines; losses are this rank's."""
    use_host(job.host)
    # The pool has formed the group already.
    os.environ.update(MASTER_ADDR="unused", MASTER_PORT="1")
    config, _ = train_rlds.build_config([f"load_from={job.settings}"])
    with job.clipping(), run.start(config, use_cuda=False) as present, present.stopper.scope():
        built = build(job.settings)
        loader = api.train_loader(**built.loader_arguments)
        losses: list = []
        for _ in api.epochs(range(1), built.model):
            built.model.set_train()
            while len(losses) < job.steps:
                for batch in loader:
                    losses.append(one_step(built.model, batch))
                    if len(losses) == job.steps:
                        break
        samples = len(built.loader_arguments["dataset"])
        return {**result_of(built.model, losses), "samples": samples}
