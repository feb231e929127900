"""The names that edited hosts use, and nothing else.

Every name works, and costs nothing, on one rank: a patched host contains no `if distributed`.
Functions that all ranks must call together say "Collective" first.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn

from robomimic_ddp import algo as host_algo
from robomimic_ddp import (
    checkpoint,
    entry,
    env,
    group,
    history,
    host_config,
    main_rank,
    metrics,
    places,
    plan,
    random_streams,
    resume,
    sampling,
    state,
    verify,
    wrap,
)
from robomimic_ddp import rollouts as _rollouts
from robomimic_ddp import run as _run
from robomimic_ddp.errors import PatchError
from robomimic_ddp.main_rank import (
    agree,
    ask,
    copyfile,
    data_logger,
    main_rank_only,
    open_on_main,
    print_logger,
)

API_VERSION = 1
"""Raised when a name changes its meaning or goes; hosts patched for another version are refused."""

__all__ = [
    "API_VERSION",
    "agree",
    "ask",
    "copyfile",
    "cuda_device",
    "data_logger",
    "distributed",
    "entry_point",
    "epoch_log",
    "epochs",
    "main_rank_only",
    "open_on_main",
    "parallel",
    "prepare_config",
    "print_logger",
    "restored",
    "rlds_datasets",
    "rlds_env_metadata",
    "rlds_shape_metadata",
    "rollouts",
    "run_directory",
    "save",
    "scale_lr",
    "sharded",
    "train_loader",
    "valid_loader",
]

save = checkpoint.save
prepare_config = host_config.prepare_config
restored = resume.restored

_VALIDATION = 0xEA1
"""Keeps the streams of validation apart from all others that are drawn from the run's seed."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise PatchError(
        f"robomimic_ddp.api has no {name!r}: the host was patched by another version of "
        "robomimic-ddp than the "
        f"installed one (API {API_VERSION}). Run `robomimic-ddp revert` and `robomimic-ddp apply` "
        "on the host."
    )


def entry_point(api_version: int) -> Callable:
    """Decorates the host's `main(args)`: any failure ends the process non-zero and is recorded for
    torchrun.

    `api_version` is the version that the host was patched for. Raises PatchError when it is not
    ours.
    """
    if api_version != API_VERSION:
        raise PatchError(
            f"this host was patched for API version {api_version} of robomimic-ddp, and "
            f"{API_VERSION} is installed: "
            "its edited lines would not mean what they say. Run `robomimic-ddp revert` and "
            "`robomimic-ddp apply`."
        )
    return entry.entry_point


def distributed(train: Callable) -> Callable:
    """Collective: decorates `train(config, device, ...)` with a run: plan, process group, quiet
    other ranks.

    The device is replaced by this rank's own when the host chose CUDA.
    """
    signature = inspect.signature(train)

    @functools.wraps(train)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        config = bound.arguments.get("config", next(iter(bound.arguments.values())))
        device = torch.device(bound.arguments.get("device", "cpu"))
        fine_tuning = bool(config.experiment.get("ckpt_path", None)) and not bound.arguments.get(
            "resume", False
        )
        with _run.start(config, device.type == "cuda", fine_tuning) as run:
            chosen = torch.device(run.plan.device)
            if run.plan.mode == "single" and device.index and not env.read_launch_env().launched:
                chosen = device  # one plain process keeps the GPU that its caller chose
            if chosen.type == "cuda":
                torch.cuda.set_device(chosen)
            if "device" in bound.arguments:
                bound.arguments["device"] = chosen
            can_resume = "resume" in signature.parameters
            asked = can_resume and bool(bound.arguments.get("resume"))
            host_resumes = resume.decide(config, run, asked, can_resume)
            if can_resume:
                bound.arguments["resume"] = host_resumes
            host_config.fill_rlds_data(config)
            with run.stopper.scope():
                return train(*bound.args, **bound.kwargs)

    wrapped.is_distributed = True  # how our own entry recognises a patched host
    return wrapped


def cuda_device() -> torch.device:
    """This process's CUDA device, made the current one: cuda:LOCAL_RANK under a launcher, else
    cuda:0; the CPU where no CUDA device is visible.

    Raises LaunchError when this node has fewer visible devices than local ranks.
    """
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return torch.device("cpu")
    device = torch.device(plan.local_device(env.read_launch_env(), gpus))
    torch.cuda.set_device(device)
    return device


def parallel(net: nn.Module, module_key: bool = False) -> nn.Module:
    """The net, trained in parallel by the present run's mode: DDP, DataParallel or one device.

    The net keeps its class, methods and parameter names. `module_key` holds it under the attribute
    `module`, so that hosts whose checkpoints carry DataParallel's key keep it.
    """
    net = checkpoint.accept_any_layout(_run.parallelise(net))
    return checkpoint.accept_any_layout(wrap.ModuleKey(net)) if module_key else net


def scale_lr(lr: float) -> float:
    """The learning rate after the plan's scaling; `lr` itself where nothing is scaled."""
    run = _run.current()
    return lr if run is None else run.scale_lr(lr)


def sharded(make_dataset: Callable) -> Callable:
    """Around a host's own maker of a tf.data pipeline (octo, dlimp): on several ranks each reads
    files of its own, and `shuffle_buffer_size` is divided by the ranks; else `make_dataset` itself.

    Raises DataError for fewer files than ranks, and for statistics of one rank's share.
    """
    run = _run.current()
    if run is None or not run.plan.several_ranks:
        return make_dataset
    from robomimic_ddp.rlds import host_pipeline

    @functools.wraps(make_dataset)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        dataset = host_pipeline.make_sharded(
            make_dataset, args, kwargs, rank=run.plan.rank, world_size=run.plan.world_size
        )
        run.sharded_stream = True
        return dataset

    return wrapped


def train_loader(*args: Any, **kwargs: Any) -> Iterable:
    """The train DataLoader: on several ranks each reads its own part, reshuffled every pass, last
    batch dropped.

    Takes `torch.utils.data.DataLoader`'s arguments; on one rank it returns exactly that.
    """
    return _loader("train", args, kwargs)


def valid_loader(*args: Any, **kwargs: Any) -> Iterable:
    """The validation DataLoader: on several ranks every sample is counted once over all of them."""
    return _loader("valid", args, kwargs)


def _loader(role: str, args: tuple, kwargs: dict) -> Iterable:
    loader_kwargs = inspect.signature(torch.utils.data.DataLoader).bind(*args, **kwargs).arguments
    run = _run.current()
    if run is None:
        return torch.utils.data.DataLoader(**loader_kwargs)
    dataset = loader_kwargs["dataset"]
    if hasattr(dataset, "make_loader"):  # an RLDS dataset shards itself, before anything is decoded
        loader = dataset.make_loader(
            run.plan.batch_per_rank, run.plan.rank, run.plan.world_size, run.seed
        )
    else:
        more = {}
        make = sampling.valid_loader
        if role == "train":
            make, more = sampling.train_loader, {"stream_is_sharded": run.sharded_stream}
        loader = make(
            torch.utils.data.DataLoader,
            loader_kwargs,
            rank=run.plan.rank,
            world_size=run.plan.world_size,
            seed=run.seed,
            batch_size_per_rank=run.plan.batch_per_rank,
            **more,
        )
    if role == "train" and run.plan.world_size == 1 and not hasattr(loader, "go_to"):
        loader = sampling.ReplayedLoader(loader)
    run.loaders[role] = loader
    return loader


def epochs(iterable: Iterable, model: Any) -> Iterator:
    """Collective: goes around the epoch loop's `range(...)`.

    Before the first epoch all ranks take the main rank's weights and buffers, build their parallel
    nets, take random streams of their own and prove it (`ddp.verify`); after every epoch they prove
    to be equal still, and the run's state is saved. A run that goes on begins after the last epoch
    that it finished. After the last one the run's record gets its outcome.
    """
    run = _run.current()
    if run is None:
        yield from iterable
        return
    keeper = resume.Keeper(run, model)
    verifier, finished = _start_training(run, model, keeper)
    run.stopper.listen()
    for epoch in iterable:
        if finished is not None and epoch <= finished:
            continue
        yield epoch
        places.reached(f"end of epoch {epoch}")
        if run.plan.several_ranks:
            host_algo.make_buffers_equal(model)
        if verifier is not None:
            verifier.epoch_end(epoch)
        keeper.epoch_end(epoch)
    proven = verify.NOT_PROVEN if verifier is None else verifier.proven
    run.write_outcome(host_algo.steps(model), proven)


def _start_training(run: _run.Run, model: Any, keeper: resume.Keeper) -> tuple[Any, int | None]:
    """Collective: the one point at which weights are made equal and random streams part, and a
    saved state is put back. Returns the verifier, and the last epoch that was finished before.
    """
    if group.is_main():
        print(f"\n============= robomimic-ddp =============\n{run.describe()}\n")
    places.reached("start of training")
    parallel_nets = [
        (name, module)
        for name, module in host_algo.named_modules(model)
        if wrap.is_parallel(module)
    ]
    for name, module in parallel_nets:
        wrap.state_of(module).name = name
    if not run.plan.several_ranks:
        return None, keeper.restore()
    verify.require_covered(model)
    _run.share_cores(env.read_launch_env().local_world_size)
    host_algo.make_equal(model)
    for _, module in parallel_nets:
        wrap.build(module)
    _run.seed_streams(run.seed, run.plan.rank)
    finished = keeper.restore()
    if not run.options.values.verify:
        return None, finished
    verifier = verify.Verifier(model, run.loaders.get("train"))
    verifier.start()
    return verifier, finished


def epoch_log(run_epoch: Callable) -> Callable:
    """Collective: decorates `run_epoch`: its log averaged over ranks, weighted by samples, alike on
    every rank.

    The main rank appends it to the run's `history.jsonl`. On several ranks validation draws from
    random streams of its own, so that training does not depend on it.
    """
    signature = inspect.signature(run_epoch)
    over_ranks = metrics.epoch_log(run_epoch, lambda: getattr(_run.current(), "part", None))

    @functools.wraps(run_epoch)
    def forked(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        if call.arguments.get("validate"):
            with _forked(call):
                return over_ranks(*args, **kwargs)
        run = _run.current()
        if run is None or run.part is None:
            return over_ranks(*args, **kwargs)
        run.part.epoch = call.arguments.get("epoch")
        result = over_ranks(*args, **kwargs)
        if not isinstance(result, tuple):  # else the host keeps the iterator: (log, iterator)
            getattr(run.loaders.get("train"), "let_go", lambda: None)()
        return result

    def directory() -> Path | None:
        run = _run.current()
        return run.directory if run is not None and group.is_main() else None

    return history.recorded(forked, directory, lambda: _run.current().plan.samples_per_step)


def _forked(call: inspect.BoundArguments) -> Any:
    """Random streams for the validation of the present epoch; on one rank the host's own, since its
    arithmetic is kept to the bit.
    """
    run = _run.current()
    if run is None or not run.plan.several_ranks:
        return contextlib.nullcontext()
    epoch = call.arguments.get("epoch")
    number = epoch if isinstance(epoch, int) else 0
    return random_streams.forked(_VALIDATION, run.seed, run.plan.rank, number)


def rollouts(rollout_with_stats: Callable) -> Callable:
    """Collective: decorates `rollout_with_stats`: the episodes split over ranks, each drawing from
    streams of its own; the statistics of all of them on every rank, the video on the main rank.
    """
    return _rollouts.split_rollouts(rollout_with_stats, lambda: _run.current().seed)


def run_directory(get_exp_dir: Callable) -> Callable:
    """Collective: decorates `get_exp_dir`: made once, by the main rank; the same paths, or error,
    on all ranks. A run that goes on gets the paths that it had, and nothing is asked or removed.
    """

    @functools.wraps(get_exp_dir)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        places.reached("run directory")

        def make() -> Any:
            run = _run.current()
            if run is not None and run.found is not None and run.found.paths:
                paths, directory = run.found.paths, run.found.directory
                for path in paths:
                    if path is not None:
                        Path(path).mkdir(exist_ok=True)
            else:
                paths = get_exp_dir(*args, **kwargs)
                directory = host_config.common_directory(paths)
            if run is not None:
                job = state.job_name(env.read_launch_env())
                place = {"job": job, "paths": state.relative_paths(directory, paths)}
                run.write_record(directory, place)
            return paths

        return main_rank.on_main(make)

    return wrapped


def rlds_datasets(load_data_for_training: Callable) -> Callable:
    """Decorates `load_data_for_training`: RLDS datasets when `train.data_format` says so, else the
    host's own.
    """

    @functools.wraps(load_data_for_training)
    def wrapped(config: Any, *args: Any, **kwargs: Any) -> Any:
        if not host_config.uses_rlds(config):
            return load_data_for_training(config, *args, **kwargs)
        from robomimic_ddp.rlds import host

        return host.datasets_from_config(config, *args, **kwargs)

    return wrapped


def rlds_env_metadata(get_env_metadata_from_dataset: Callable) -> Callable:
    """Decorates `get_env_metadata_from_dataset`: also answers for the folder of an RLDS dataset."""

    @functools.wraps(get_env_metadata_from_dataset)
    def wrapped(dataset_path: Any, *args: Any, **kwargs: Any) -> Any:
        if not host_config.is_rlds_folder(dataset_path):
            return get_env_metadata_from_dataset(dataset_path, *args, **kwargs)
        from robomimic_ddp.rlds import host

        return host.env_metadata(dataset_path)

    return wrapped


def rlds_shape_metadata(get_shape_metadata_from_dataset: Callable) -> Callable:
    """Decorates `get_shape_metadata_from_dataset`: also answers for RLDS dataset entries."""

    @functools.wraps(get_shape_metadata_from_dataset)
    def wrapped(
        dataset_config: Any, action_keys: Any, all_obs_keys: Any = None, **kwargs: Any
    ) -> Any:
        if not host_config.is_rlds_folder(dataset_config["path"]):
            return get_shape_metadata_from_dataset(
                dataset_config, action_keys, all_obs_keys, **kwargs
            )
        from robomimic_ddp.rlds import host

        return host.shape_metadata(dataset_config, action_keys, all_obs_keys)

    return wrapped
