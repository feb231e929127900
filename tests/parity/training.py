"""Trains the host's diffusion policy a few steps: on one rank of several, and in one process that
stands for all.

The one process draws every random number from the rank's own stream: for each rank it keeps the
whole state of torch's generator, and batch, noise and timesteps are the concatenation of what each
rank would draw.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

import numpy as np
import torch

from robomimic_ddp import api, run, sampling, train_rlds


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


def train_on_rank(host: str, settings: str, steps: int) -> dict:
    """Collective: `steps` steps through the patched host's own lines; losses are this rank's."""
    use_host(host)
    os.environ.update(
        MASTER_ADDR="unused", MASTER_PORT="1"
    )  # the pool has formed the group already
    config, _ = train_rlds.build_config([f"load_from={settings}"])
    with run.start(config, use_cuda=False):
        built = build(settings)
        loader = api.train_loader(**built.loader_arguments)
        losses: list = []
        for _ in api.epochs(range(1), built.model):
            built.model.set_train()
            while len(losses) < steps:
                for batch in loader:
                    losses.append(one_step(built.model, batch))
                    if len(losses) == steps:
                        break
        return result_of(built.model, losses)


class RankStreams:
    """torch's default generator, one state for each rank; `of(rank)` switches to it and back."""

    def __init__(self, seed: int, world_size: int) -> None:
        start = torch.get_rng_state()
        self.states = []
        for rank in range(world_size):
            torch.set_rng_state(start)
            run.seed_streams(seed, rank)
            self.states.append(torch.get_rng_state())
        torch.set_rng_state(start)

    def draw(self, rank: int, function: Callable) -> Any:
        """`function()` with rank's stream, which moves on."""
        kept = torch.get_rng_state()
        torch.set_rng_state(self.states[rank])
        value = function()
        self.states[rank] = torch.get_rng_state()
        torch.set_rng_state(kept)
        return value


def train_for_all_ranks(host: str, settings: str, steps: int, world_size: int) -> dict:
    """One plain process with the batch of all ranks: `losses[step]` is the loss over the whole
    batch.
    """
    use_host(host)
    built = build(settings)
    model, size = built.model, built.config.train.batch_size
    streams = RankStreams(built.config.train.seed, world_size)
    loaders = [
        sampling.train_loader(
            torch.utils.data.DataLoader,
            built.loader_arguments,
            rank=rank,
            world_size=world_size,
            seed=built.config.train.seed,
            batch_size_per_rank=size,
        )
        for rank in range(world_size)
    ]
    iterators = [streams.draw(rank, partial(iter, loaders[rank])) for rank in range(world_size)]
    real_randn, real_randint, real_randn_like = torch.randn, torch.randint, torch.randn_like

    def randn(shape: Any, **kwargs: Any) -> torch.Tensor:
        return torch.cat(
            [
                streams.draw(r, lambda: real_randn((size, *shape[1:]), **kwargs))
                for r in range(world_size)
            ]
        )

    def randint(low: int, high: int, shape: Any, **kwargs: Any) -> torch.Tensor:
        return torch.cat(
            [
                streams.draw(r, lambda: real_randint(low, high, (size,), **kwargs))
                for r in range(world_size)
            ]
        )

    def randn_like(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        # SpatialSoftmax draws its noise in training even at noise_std 0; rows are ordered by rank.
        return torch.cat(
            [
                streams.draw(r, partial(real_randn_like, part, **kwargs))
                for r, part in enumerate(tensor.chunk(world_size))
            ]
        )

    losses: list = []
    model.set_train()
    while len(losses) < steps:
        parts = []
        for rank in range(world_size):

            def following(rank: int = rank) -> Any:
                try:
                    return next(iterators[rank])
                except StopIteration:
                    iterators[rank] = iter(loaders[rank])
                    return next(iterators[rank])

            parts.append(streams.draw(rank, following))
        batch = concatenate(parts)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(torch, "randn", randn))
            stack.enter_context(mock.patch.object(torch, "randint", randint))
            stack.enter_context(mock.patch.object(torch, "randn_like", randn_like))
            losses.append(one_step(model, batch))
    return result_of(model, losses)


def concatenate(parts: list) -> Any:
    """Nested dictionaries of tensors [B, ...], joined along B."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    return torch.cat(parts)
