"""Trains an algorithm of the host a few steps on one rank of several.

`tests.parity.reference` does the same in one process that stands for all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from robomimic_ddp import api
from robomimic_ddp.config.host import host_config
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.training import run_inputs, session
from tests.configs import write_config
from tests.hosts import Host


class Job(NamedTuple):
    """`steps` steps of the edited host in folder `host` with the configuration file `settings`.

    max_grad_norm: goes to the host's `backprop_for_loss`, which clips; its diffusion policy leaves
    `train.max_grad_norm` unread. double: all numbers in 64 bits. second_epoch: the step from which
    on the algorithm is in its second epoch.
    """

    host: str
    settings: str
    steps: int
    max_grad_norm: float | None = None
    double: bool = False
    second_epoch: int | None = None

    def epoch(self, step: int) -> int:
        """The epoch that the algorithm is given."""
        return 1 if self.second_epoch is None or step < self.second_epoch else 2

    @contextmanager
    def changes(self) -> Iterator[None]:
        """The host as the job wants it. Call before models are built."""
        with ExitStack() as stack:
            if self.max_grad_norm is not None:
                import robomimic.utils.torch_utils as TorchUtils

                clipped = partial(TorchUtils.backprop_for_loss, max_grad_norm=self.max_grad_norm)
                stack.enter_context(mock.patch.object(TorchUtils, "backprop_for_loss", clipped))
            if self.double:  # the host calls .float() of batches, and of its nets
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
                for owner in (torch.Tensor, torch.nn.Module):
                    stack.enter_context(mock.patch.object(owner, "float", owner.double))
            stack.enter_context(thin_resnet())
            yield


def job_of(host: Host, folder: Path, config: dict, steps: int, *more: Any, **ddp: Any) -> Job:
    """Write the config with our options on top below `folder`; return its job."""
    options = {**config.get("ddp", {}), **ddp}
    file = folder / f"{len(list(folder.iterdir()))}.json"
    settings = write_config(file, {**config, **({"ddp": options} if options else {})})
    return Job(str(host.folder), str(settings), steps, *more)


@contextmanager
def thin_resnet() -> Iterator[None]:
    """Inside, the host's ResNet18 has an eighth of its channels after the first layer."""
    import torchvision.models.resnet as resnets
    from robomimic.models.base_nets import ResNet18Conv, vision_models

    class Thin(resnets.ResNet):
        def _make_layer(self, block: Any, planes: int, *call: Any, **options: Any) -> Any:
            return super()._make_layer(block, planes // 8, *call, **options)

    def output_shape(self: Any, shape: Any) -> list:
        channels, *size = real_shape(self, shape)
        return [channels // 8, *size]

    real_shape = ResNet18Conv.output_shape
    with ExitStack() as stack:
        for owner, name, new in (
            (vision_models, "resnet18", lambda **_: Thin(resnets.BasicBlock, [2, 2, 2, 2])),
            (ResNet18Conv, "output_shape", output_shape),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def use_host(host: str) -> None:
    """Puts the edited copy of the host first, and makes sure that it is the one imported."""
    if host not in sys.path:
        sys.path.insert(0, host)
    import robomimic

    assert robomimic.__file__.startswith(host), (
        f"another robomimic was imported before: {robomimic.__file__}"
    )


def build(settings: str, device: str = "cpu") -> SimpleNamespace:
    """What the host's train() builds, in its order: seeds, datasets, loader arguments, model."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    import robomimic.utils.train_utils as TrainUtils
    from robomimic.algo import algo_factory

    config = host_config.build_config([f"load_from={settings}"])
    run_inputs.fill_rlds_data(config)
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
        for section in optimizer_settings(config.algo):
            section["num_train_batches"], section["num_epochs"] = 10, config.train.num_epochs
    model = algo_factory(
        config.algo_name,
        config,
        obs_key_shapes=shapes["all_shapes"],
        ac_dim=shapes["ac_dim"],
        device=torch.device(device),
    )
    return SimpleNamespace(
        config=config,
        model=model,
        loader_arguments=loader_arguments,
        start=nets_of(model),
    )


def optimizer_settings(algo: Any) -> Iterator[Any]:
    """Those of a config's `algo` for each optimizer; a hierarchical one has them in its parts."""
    if "optim_params" in algo:
        yield from algo.optim_params.values()
        return
    for section in algo.values():
        if hasattr(section, "values"):
            yield from optimizer_settings(section)


def only_forward(model: Any, batch: dict) -> None:
    """The forward of a step, in training mode; nothing is learned."""
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    model.train_on_batch(prepared, epoch=1, validate=True)


def one_step(model: Any, batch: dict, epoch: int = 1) -> float | None:
    """The body of the host's run_epoch; the loss, where the algorithm logs one of that name."""
    prepared = model.process_batch_for_training(batch)
    prepared = model.postprocess_batch_for_training(prepared, obs_normalization_stats=None)
    info = model.train_on_batch(prepared, epoch=epoch)
    model.on_gradient_step()
    return model.log_info(info).get("Loss")


def nets_of(model: Any) -> dict[str, torch.Tensor]:
    """A copy of parameters and buffers: "policy: obs_encoder...", "policy buffers: ...", of a part
    "planner.goal_network: ...".
    """
    copies = {}
    for prefix, nets in host_algo.named_nets(model):
        for net, module in nets.items():
            trained = dict(module.named_parameters())
            for name, tensor in module.state_dict().items():
                kind = "" if name in trained else " buffers"
                copies[f"{prefix.removesuffix('nets')}{net}{kind}: {name}"] = whole(tensor)
    return copies


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Collective where `tensor` is sharded: a copy of all of it."""
    return fsdp.full(tensor).clone()


def optimizers_of(model: Any) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Every optimizer by name: "policy", "critic.1", "planner.goal_network"."""
    for prefix, _ in host_algo.named_nets(model):
        part = reduce(getattr, prefix.split(".")[:-1], model)
        for name, found in part.optimizers.items():
            name = prefix.removesuffix("nets") + name
            if isinstance(found, list):
                yield from ((f"{name}.{index}", one) for index, one in enumerate(found))
            else:
                yield name, found


def result_of(built: SimpleNamespace, losses: list) -> dict:
    """Losses, nets, averaged nets and the optimizers' moments, by name; `start`: the nets before
    the first step.
    """
    model = built.model
    moments = {
        f"{name}.{index}.{key}": whole(torch.as_tensor(value))
        for name, optimizer in optimizers_of(model)
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }
    ema = getattr(model, "ema_nets", torch.nn.Module())
    return {
        "losses": losses,
        "start": built.start,
        "nets": nets_of(model),
        "ema": {name: whole(tensor) for name, tensor in ema.state_dict().items()},
        "optimizer": moments,
        "lr": [one.param_groups[0]["lr"] for _, one in optimizers_of(model)],
    }


def train_on_rank(job: Job) -> dict:
    """Collective: the job through the patched host's own lines; losses are this rank's."""
    use_host(job.host)
    config = host_config.build_config([f"load_from={job.settings}"])
    with job.changes(), session.start(config, use_cuda=False) as present, present.stopper.scope():
        built = build(job.settings)
        loader = api.train_loader(**built.loader_arguments)
        losses: list = []
        for _ in api.epochs(range(1), built.model):
            built.model.set_train()
            while len(losses) < job.steps:
                for batch in loader:
                    losses.append(one_step(built.model, batch, job.epoch(len(losses))))
                    if len(losses) == job.steps:
                        break
        samples = len(built.loader_arguments["dataset"])
        return {**result_of(built, losses), "samples": samples}
