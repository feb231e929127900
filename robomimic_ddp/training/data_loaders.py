"""The functions that a host calls to make datasets and loaders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from robomimic_ddp.config.host import host_config
from robomimic_ddp.data import sampling
from robomimic_ddp.data.rlds.index.source import is_rlds_folder
from robomimic_ddp.data.sampling import worker_options
from robomimic_ddp.errors import DataError, OptionError
from robomimic_ddp.training import run as _run


def train_loader(*args: Any, **kwargs: Any) -> Iterable:
    """Return the train DataLoader: on several ranks each reads its shard, reshuffled every pass,
    with drop_last.

    Takes the arguments of `torch.utils.data.DataLoader`, and returns one on one rank.
    """
    return _loader("train", args, kwargs)


def valid_loader(*args: Any, **kwargs: Any) -> Iterable:
    """Return the validation DataLoader: on several ranks every sample counts once over all."""
    return _loader("valid", args, kwargs)


def _loader(role: str, args: tuple, kwargs: dict) -> Iterable:
    loader_kwargs = inspect.signature(torch.utils.data.DataLoader).bind(*args, **kwargs).arguments
    run = _run.current()
    if run is None:
        return torch.utils.data.DataLoader(**loader_kwargs)
    dataset = loader_kwargs["dataset"]
    # A batch of the train loader is for a whole step (see training/step/accumulation.py).
    batch = run.plan.batch_per_rank
    if role == "train":
        batch = _samples_per_rank(run.plan, loader_kwargs)
    values, on_gpu = run.options, run.plan.device.startswith("cuda")
    if hasattr(dataset, "is_rlds"):  # sharded by its loader, before anything is decoded
        from robomimic_ddp.data.rlds.loaders.make import make_loader

        if values.loader:
            raise OptionError(
                f"ddp.loader.{next(iter(values.loader))} is for torch's DataLoader, which does "
                "not read RLDS data, so it would have no effect. Leave ddp.loader out."
            )
        extra = {
            "cores": run.settings.cores,
            # The train loader sends its batches to the GPU itself.
            "pin_memory": on_gpu and role == "train" and values.preset != "safe",
            "device": torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
        }
        place = (run.plan.rank, run.plan.world_size)
        loader = make_loader(dataset, batch, *place, run.settings.seed, **extra)
    else:
        loader_kwargs = worker_options.loader_arguments(
            dict(loader_kwargs), values, run.plan.data_workers, role
        )
        extra = {}
        make = sampling.valid_loader
        if role == "train":
            make = sampling.train_loader
            extra["stream_is_sharded"] = run.built.sharded_stream
            if run.plan.accumulate > 1:  # on one rank the host's batch is delivered
                loader_kwargs["batch_size"] = batch
        loader = make(
            torch.utils.data.DataLoader,
            loader_kwargs,
            rank=run.plan.rank,
            world_size=run.plan.world_size,
            seed=run.settings.seed,
            batch_size_per_rank=batch,
            **extra,
        )
    if role == "train" and run.plan.world_size == 1 and not hasattr(loader, "seek"):
        loader = sampling.ReplayedLoader(loader)
    before = run.built.loaders.get(role)
    joins = role == "train" and before is not None
    run.built.loaders[role] = sampling.JoinedLoaders(before, loader) if joins else loader
    return loader


def _samples_per_rank(plan: Any, loader_kwargs: Mapping[str, Any]) -> int:
    """Samples of a rank's step from this train loader: all, or a part if a host joins the batches
    of several loaders, each smaller than train.batch_size. Raises DataError if it is not an
    integer.
    """
    size, configured = loader_kwargs.get("batch_size"), plan.configured_batch
    if not isinstance(size, int) or size < 1:
        return plan.samples_per_rank
    samples, rest = divmod(size * plan.samples_per_rank, configured)
    if rest:
        raise DataError(
            f"the host makes a train loader of {size} samples where train.batch_size={configured}: "
            f"with {plan.samples_per_rank} samples per rank and step, its part would be "
            f"{size * plan.samples_per_rank / configured:.2f} samples. Use a train.batch_size "
            "whose parts split over the ranks, or ddp.batch=per_rank."
        ).on_all_ranks()
    return samples


def sharded(make_dataset: Callable) -> Callable:
    """Wraps a host's function that makes a tf.data pipeline (octo, dlimp): on several ranks each
    reads its shard of the episodes, and `shuffle_buffer_size` is divided by the ranks. On one rank
    `make_dataset` itself.

    Raises DataError for fewer episodes than ranks, and for statistics of one rank's shard.
    """
    run = _run.current()
    if run is None or not run.plan.several_ranks:
        return make_dataset
    from robomimic_ddp.data.rlds import tfds_sharding

    @functools.wraps(make_dataset)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        dataset = tfds_sharding.make_sharded(
            make_dataset, args, kwargs, rank=run.plan.rank, world_size=run.plan.world_size
        )
        run.built.sharded_stream = True
        return dataset

    return wrapped


def rlds_datasets(load_data_for_training: Callable) -> Callable:
    """Decorates `load_data_for_training`: RLDS datasets by `train.data_format`, else the host's."""

    @functools.wraps(load_data_for_training)
    def wrapped(config: Any, *args: Any, **kwargs: Any) -> Any:
        if not host_config.uses_rlds(config):
            return load_data_for_training(config, *args, **kwargs)
        from robomimic_ddp.data.rlds import host_datasets

        run = _run.current()
        if run is not None:
            options = run.options
            kwargs = {
                **kwargs,
                "skip_corrupt": options.skip_corrupt,
                "language_model": options.language_model,
                "device": run.plan.device,
            }
        return host_datasets.datasets_from_config(config, *args, **kwargs)

    return wrapped


def rlds_env_metadata(get_env_metadata_from_dataset: Callable) -> Callable:
    """Decorates `get_env_metadata_from_dataset`: also for the folder of an RLDS dataset."""

    @functools.wraps(get_env_metadata_from_dataset)
    def wrapped(dataset_path: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_rlds_folder(dataset_path):
            return get_env_metadata_from_dataset(dataset_path, *args, **kwargs)
        from robomimic_ddp.data.rlds import host_datasets

        return host_datasets.env_metadata(dataset_path)

    return wrapped


def rlds_shape_metadata(get_shape_metadata_from_dataset: Callable) -> Callable:
    """Decorates `get_shape_metadata_from_dataset`: also for RLDS entries.

    Hosts pass an entry of train.data, or (older ones) a path and other parameters, which are passed
    on. RLDS data needs an entry, else it raises DataError.
    """
    signature = inspect.signature(get_shape_metadata_from_dataset)

    @functools.wraps(get_shape_metadata_from_dataset)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        entry = next(iter(arguments.values()), None)
        path = entry["path"] if isinstance(entry, Mapping) else entry
        if not is_rlds_folder(path):
            return get_shape_metadata_from_dataset(*args, **kwargs)
        if not isinstance(entry, Mapping):
            raise DataError(
                f"{path} is RLDS data, and this host's get_shape_metadata_from_dataset{signature} "
                "expects the path of an HDF5 file. Train on HDF5 data with it, or use a host whose "
                "function takes an entry of train.data (robomimic 0.4 and later)."
            )
        from robomimic_ddp.data.rlds import host_datasets

        run = _run.current()
        model = run.options.language_model if run is not None else "auto"
        keys = arguments.get("action_keys"), arguments.get("all_obs_keys")
        return host_datasets.shape_metadata(entry, *keys, model)

    return wrapped
