"""The planted faults: what goes wrong, when, and what the message must say.

`@fault(title, at=moment, says=[...])` on a function of a ToyJob; it is called on every rank at
that moment. BAD is the rank on which things go wrong where they do on one only.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import robomimic_ddp
from robomimic_ddp import api
from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import parallel
from robomimic_ddp.training import run
from tests.faults.toy_run import BATCH, SEED

BAD = 1
ODD, EVERYWHERE = f"[{BAD}]", "[0, 1, 2]"


class Fault(NamedTuple):
    """`plants[moment](job)`, called at that moment; the error must hold all of `says`."""

    plants: dict
    says: tuple


CATALOGUE: dict[str, Fault] = {}


def fault(title: str, at: str, says: list, **before: Callable) -> Callable:
    """Adds the decorated function to the catalogue. `before`: what it needs at earlier moments."""

    def add(plant: Callable) -> Callable:
        assert title not in CATALOGUE
        CATALOGUE[title] = Fault({**before, at: plant}, tuple(says))
        return plant

    return add


def policy(job: Any) -> Any:
    return job.algo.nets["policy"]


def optimizer(job: Any) -> Any:
    return job.algo.optimizers["policy"]


# ----- nets trained past their parallel forward


@fault(
    "a net is trained through forward",
    at="step",
    says=[
        "first step",
        "gradient of nets.policy.noise_pred_net",
        "policy.noise_pred_net was never called in training mode",
    ],
)
def through_forward(job):
    def loss(batch):
        seen = policy(job)["obs_encoder"](batch["obs"])
        return policy(job)["noise_pred_net"].forward(seen).pow(2).mean()

    job.loss = loss


@fault(
    "a net is trained through another method",
    at="step",
    says=["gradient of nets.policy.obs_encoder", "policy.obs_encoder was never called"],
)
def through_a_method(job):
    def loss(batch):
        seen = policy(job)["obs_encoder"].encode(batch["obs"])
        return policy(job)["noise_pred_net"](seen).pow(2).mean()

    job.loss = loss


@fault(
    "a DDP of the host's own is trained through .module",
    at="construction",
    says=["policy.noise_pred_net is a DistributedDataParallel", EVERYWHERE],
)
def through_module(job):
    head = policy(job)["noise_pred_net"]
    policy(job)["noise_pred_net"] = DistributedDataParallel(nn.Sequential(*head))


@fault(
    "DataParallel inside DDP",
    at="construction",
    says=["policy.noise_pred_net.0 is a DataParallel", EVERYWHERE],
)
def data_parallel_inside(job):
    policy(job)["noise_pred_net"][0] = nn.DataParallel(policy(job)["noise_pred_net"][0])


@fault(
    "a net is left in eval()",
    at="epoch begins",
    says=["WrapError", "net policy.obs_encoder received a gradient on rank", "set_train()"],
)
def left_in_eval(job):
    policy(job)["obs_encoder"].eval()


@fault(
    "a net is left in eval() on one rank",
    at="epoch begins",
    says=["before the first training forward", "mode of policy.obs_encoder", ODD, "eval"],
)
def left_in_eval_on_one_rank(job):
    policy(job)["obs_encoder"].train(job.rank != BAD)


@fault(
    "DDP's no_sync is left on",
    at="epoch begins",
    says=["policy.noise_pred_net is inside DDP's no_sync()", EVERYWHERE],
)
def no_sync(job):
    parallel.state_of(policy(job)["noise_pred_net"]).parallel.require_backward_grad_sync = False


# ----- nets and parameters that are not what was made parallel


@fault(
    "a parameter outside the wrapped nets",
    at="construction",
    says=["nets.extra.weight", "outside the nets", "3 different models", EVERYWHERE],
)
def parameter_outside(job):
    job.algo.nets["extra"] = nn.Linear(2, 2)


@fault(
    "a parameter outside the wrapped nets on one rank",
    at="construction",
    says=["nets.extra.weight", "outside the nets", ODD],
)
def parameter_outside_on_one_rank(job):
    if job.rank == BAD:
        job.algo.nets["extra"] = nn.Linear(2, 2)


@fault(
    "a net is replaced by a plain one after wrapping",
    at="epoch begins",
    says=["nets.policy.noise_pred_net.0.weight", "outside the nets", EVERYWHERE],
)
def replaced(job):
    policy(job)["noise_pred_net"] = copy.deepcopy(policy(job)["noise_pred_net"])


@fault(
    "a net is replaced by a plain one after wrapping, on one rank",
    at="epoch begins",
    says=["nets.policy.noise_pred_net.0.weight", "outside the nets", ODD],
)
def replaced_on_one_rank(job):
    if job.rank == BAD:
        replaced(job)


@fault(
    "all nets are replaced on one rank",
    at="epoch begins",
    says=["the ranks are at different places", "first step of optimizer policy", ODD],
)
def all_replaced_on_one_rank(job):
    if job.rank == BAD:
        job.algo.nets["policy"] = copy.deepcopy(job.algo.nets["policy"])


@fault(
    "a net is replaced by a parallel one, which no optimizer holds",
    at="epoch begins",
    says=["optimizer policy updates 4 parameter(s) that are in none of the model's nets"],
)
def replaced_by_a_parallel_net(job):
    plain = copy.deepcopy(policy(job)["noise_pred_net"])
    policy(job)["noise_pred_net"] = api.parallel(plain)


@fault(
    "a parameter is added after training began",
    at="epoch begins",
    says=["policy.noise_pred_net.late was added, replaced or unfrozen", EVERYWHERE],
)
def added_later(job):
    late = nn.Parameter(torch.zeros(4))
    policy(job)["noise_pred_net"].register_parameter("late", late)
    optimizer(job).add_param_group({"params": [late]})


@fault(
    "a parameter is unfrozen after training began",
    at="epoch begins",
    says=["policy.noise_pred_net.2.bias was added, replaced or unfrozen", EVERYWHERE],
    construction=lambda job: policy(job)["noise_pred_net"][2].bias.requires_grad_(False),
)
def unfrozen_later(job):
    policy(job)["noise_pred_net"][2].bias.requires_grad_(True)


@fault(
    "a parameter is frozen on one rank only",
    at="construction",
    says=["kind of nets.policy.obs_encoder.layer.weight", "frozen float32", ODD],
)
def frozen_on_one_rank(job):
    policy(job)["obs_encoder"].layer.weight.requires_grad_(job.rank != BAD)


@fault(
    "a parameter is frozen on one rank only, after training began",
    at="epoch begins",
    says=["first training forward", "kind of nets.policy.obs_encoder.layer.weight", ODD],
)
def frozen_later_on_one_rank(job):
    frozen_on_one_rank(job)


@fault(
    "another dtype on one rank",
    at="construction",
    says=["kind of nets.policy.obs_encoder.grid", "frozen float64", ODD],
)
def other_dtype(job):
    if job.rank == BAD:
        job.algo.nets.double()


@fault(
    "another net size on one rank",
    at="construction",
    says=["kind of nets.policy.noise_pred_net.2.bias", "[5]", ODD],
)
def other_shape(job):
    if job.rank == BAD:
        policy(job)["noise_pred_net"][2].bias.data = torch.zeros(5)


# ----- weights, averages, buffers


@fault(
    "one rank loads another checkpoint",
    at="construction",
    says=["after loading a checkpoint", "nets.policy.obs_encoder.layer.weight", ODD, "same file"],
)
def other_checkpoint(job):
    if job.rank == BAD:
        policy(job)["obs_encoder"].layer.weight.data.mul_(2)
    run.current().fine_tuning = True


@fault(
    "one rank loads another optimizer state",
    at="construction",
    says=["after loading a checkpoint", "optimizer policy: exp_avg of nets.policy", ODD],
)
def other_optimizer_state(job):
    for parameter in job.algo.nets.parameters():
        optimizer(job).state[parameter] = {
            "step": torch.tensor(5.0),
            "exp_avg": torch.full_like(parameter, float(job.rank == BAD)),
            "exp_avg_sq": torch.ones_like(parameter),
        }


@fault(
    "one rank loads weights after the epochs began",
    at="epoch ends",
    says=["end of epoch 1", "nets.policy.obs_encoder.layer.weight", ODD],
)
def loaded_later(job):
    if job.rank == BAD:
        job.algo.nets.load_state_dict(job.algo.ema_nets.state_dict())


@fault(
    "not-a-number in the parameters of one rank",
    at="epoch ends",
    says=["end of epoch 1", "nets.policy.noise_pred_net.2.bias", ODD],
)
def not_a_number(job):
    if job.rank == BAD:
        policy(job)["noise_pred_net"][2].bias.data[0] = float("nan")


@fault(
    "a zero of the other sign on one rank",
    at="epoch ends",
    says=["end of epoch 1", "nets.policy.noise_pred_net.2.bias", ODD],
)
def negative_zero(job):
    policy(job)["noise_pred_net"][2].bias.data[0] = -0.0 if job.rank == BAD else 0.0


@fault(
    "the average is stepped on one rank only",
    at="stepped",
    says=["end of epoch 1", "ema.optimization_step", "rank 0: 4", ODD],
)
def average_on_one_rank(job):
    if job.rank == BAD and job.step_number == 1:
        job.algo.ema.step(job.algo.nets, job.algo.ema_nets)


@fault(
    "the average decays differently on one rank",
    at="stepped",
    says=["end of epoch 1", "ema_nets.policy", ODD],
)
def other_decay(job):
    if job.rank == BAD:
        for averaged in job.algo.ema_nets.parameters():
            averaged.mul_(0.999)


@fault(
    "a buffer is written on one rank, with ddp.buffer_sync off",
    at="stepped",
    says=["end of epoch 1", "buffer nets.policy.obs_encoder.grid", "changed", ODD],
    config=lambda job: job.options.update(buffer_sync="false"),  # else DDP heals it, by copying
)
def buffer_written(job):
    if job.rank == BAD:
        policy(job)["obs_encoder"].grid.add_(0.1)


# ----- steps, gradients, schedules


@fault(
    "one rank skips a step",
    at="backward",
    says=["end of epoch 1", "optimizer policy step", "rank 1: (3, 3)", ODD],
)
def skipped_step(job):
    job.skip_step = job.rank == BAD and job.step_number == 2


@fault(
    "one rank takes a step more",
    at="epoch ends",
    says=["end of epoch 1", "optimizer policy step", "rank 1: (5, 5)", ODD],
)
def one_step_more(job):
    if job.rank == BAD:
        optimizer(job).step()


@fault(
    "gradients are clipped on one rank only",
    at="backward",
    says=["first step of optimizer policy", "gradient of nets.policy", ODD],
)
def clipped_on_one_rank(job):
    if job.rank == BAD:
        nn.utils.clip_grad_norm_(job.algo.nets.parameters(), 1e-3)


@fault(
    "gradients are changed on one rank at a later step",
    at="backward",
    says=["end of epoch 1", "nets.policy.noise_pred_net.2.bias", ODD],
)
def changed_later(job):
    if job.rank == BAD and job.step_number == 2:
        policy(job)["noise_pred_net"][2].bias.grad += 1e-3


@fault(
    "another learning rate on one rank",
    at="construction",
    says=["before the first step", "optimizer policy learning rates", "0.02", ODD],
)
def other_learning_rate(job):
    if job.rank == BAD:
        optimizer(job).param_groups[0]["lr"] = 2e-2


@fault(
    "a schedule's step is dropped on one rank",
    at="stepped",
    says=["end of epoch 1", "optimizer policy learning rates", ODD],
)
def dropped_schedule(job):
    job.skip_schedule = job.rank == BAD and job.step_number == 1


@fault(
    "another weight decay on one rank",
    at="construction",
    says=["optimizer policy, group 0: weight_decay", ODD],
)
def other_weight_decay(job):
    if job.rank == BAD:
        optimizer(job).param_groups[0]["weight_decay"] = 0.5


@fault(
    "an optimizer that does not hold a net",
    at="construction",
    says=["no optimizer has a parameter of policy.obs_encoder", EVERYWHERE],
)
def net_without_optimizer(job):
    job.algo.optimizers = {"policy": torch.optim.AdamW(policy(job)["noise_pred_net"].parameters())}
    job.algo.lr_schedulers = {}


@fault(
    "an optimizer with its parameters in another order on one rank",
    at="construction",
    says=["optimizer policy, group 0: parameters", ODD],
)
def other_order_of_parameters(job):
    if job.rank == BAD:
        optimizer(job).param_groups[0]["params"].reverse()


# ----- random streams


@fault(
    "the same seed for noise",
    at="epoch begins",
    says=["first step", "torch's random state", "[0, 1, 2]", "re-seeds torch"],
)
def same_noise(job):
    torch.manual_seed(3)


@fault(
    "the same seed for noise on two of three ranks, later in the epoch",
    at="step",
    says=["end of epoch 1", "torch's random state", "[0, 2]"],
)
def same_noise_later(job):
    if job.step_number == 2 and job.rank != BAD:
        torch.manual_seed(3)


@fault(
    "the same seed for augmentation at every step",
    at="step",
    says=["numpy's and Python's random state", "re-seeds numpy"],
)
def same_augmentation(job):
    import random

    np.random.seed(job.step_number)
    random.seed(job.step_number)


# ----- data


@fault(
    "the same data shard on all ranks",
    at="loader",
    says=["the share of the data", "[0, 1, 2]", "same samples"],
)
def same_shard(job):
    job.loader = loader_as(job, rank=0, seed=SEED)


@fault(
    "another shuffle seed on one rank",
    at="loader",
    says=["the order of the present pass", ODD, "Seed it with train.seed"],
)
def other_shuffle(job):
    job.loader = loader_as(job, rank=job.rank, seed=SEED + (job.rank == BAD))


def loader_as(job: Any, rank: int, seed: int) -> Any:
    return sampling.train_loader(
        torch.utils.data.DataLoader,
        {"dataset": job.dataset, "shuffle": True},
        rank=rank,
        world_size=3,
        seed=seed,
        batch_size_per_rank=BATCH,
    )


@fault(
    "a shorter dataset on one rank",
    at="data",
    says=["train dataset: number of samples", "rank 1: 90", ODD],
)
def shorter_data(job):
    if job.rank == BAD:
        job.dataset.rows = job.dataset.rows[:90]


@fault(
    "an unequal number of batches",
    at="loader",
    says=["train loader: number of batches", "rank 1: 7", ODD],
)
def fewer_batches(job):
    if job.rank == BAD:
        job.loader.sampler.size -= 3 * BATCH


@fault(
    "other bytes in the data file of one rank",
    at="data",
    says=["train dataset: bytes of its files", ODD],
)
def other_file(job):
    job.folder = tempfile.TemporaryDirectory()
    file = Path(job.folder.name) / "data.hdf5"
    file.write_bytes(bytes(50_000) if job.rank != BAD else bytes(49_999) + b"x")
    job.dataset.hdf5_path = str(file)


@fault(
    "other normalisation statistics on one rank",
    at="data",
    says=["train dataset: action_normalization_stats", ODD],
)
def other_statistics(job):
    if job.rank == BAD:
        job.dataset.action_normalization_stats["actions"]["scale"] *= 1.001


@fault(
    "one rank trains on one batch over and over",
    at="epoch begins",
    says=["end of epoch 1", "all 4 batches of the epoch were the same samples", ODD],
)
def repeated_batch(job):
    kept = []

    def change(batch):
        kept.append(batch)
        return kept[0] if job.rank == BAD else batch

    job.change_batch = change


@fault(
    "one rank leaves samples of a batch out",
    at="epoch begins",
    says=["number of training samples in the epoch", "rank 1: 12", ODD],
)
def smaller_batches(job):
    if job.rank == BAD:
        job.change_batch = lambda batch: {key: value[:3] for key, value in batch.items()}


# ----- the job


@fault(
    "another config on one rank",
    at="config",
    says=["at start", "config train.seed", ODD, "same code, config, options"],
)
def other_config(job):
    job.config.train["seed"] = SEED + (job.rank == BAD)


@fault(
    "another option on one rank",
    at="config",
    says=["at start", "option bucket_mb", ODD],
)
def other_option(job):
    job.options = {"bucket_mb": 5} if job.rank == BAD else {}


@fault(
    "another version of our code on one rank",
    at="config",
    says=["at start", "robomimic_ddp version", "0.0.7", ODD],
)
def other_version(job):
    if job.rank == BAD:
        robomimic_ddp.__version__ = "0.0.7"


@fault(
    "another arithmetic on one rank",
    at="construction",
    says=["torch.get_float32_matmul_precision()", "medium", ODD],
)
def other_precision(job):
    torch.set_float32_matmul_precision("medium" if job.rank == BAD else "highest")


# ----- sharded nets (FSDP)


def sharded(job):
    job.options = {"mode": "fsdp"}


class Alone(nn.Module):
    """Has no part that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 4))

    def forward(self, x):
        return x @ self.weight


class Reading(nn.Sequential):
    """Computes with the weight of a part that is never called."""

    def forward(self, x):
        return super().forward(x @ self[0].weight.T @ self[0].weight)


@fault(
    "a net that could only be sharded as one unit",
    at="construction",
    config=sharded,
    says=["WrapError", "policy.noise_pred_net (Alone) cannot be sharded", "would be one unit"],
)
def one_unit(job):
    replace_head(job, Alone())


def replace_head(job: Any, head: nn.Module) -> None:
    policy(job)["noise_pred_net"] = api.parallel(head)
    rows = optimizer(job).param_groups[0]
    rows["params"] = list(job.algo.nets.parameters())
    job.algo.ema = type(job.algo.ema)(job.algo.nets)
    job.algo.ema_nets = copy.deepcopy(job.algo.nets).requires_grad_(False)


@fault(
    "a forward reads a sharded weight past its part's call",
    at="construction",
    config=sharded,
    says=["WrapError", "policy.noise_pred_net computes with a sharded weight"],
)
def reads_a_sharded_weight(job):
    replace_head(job, Reading(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))


@fault(
    "FSDP sums gradients in place of their mean",
    at="epoch begins",
    config=sharded,
    says=[
        "first step of optimizer policy",
        "gradient of nets.policy.noise_pred_net.0.weight, reduced by FSDP, is not the mean",
        EVERYWHERE,
    ],
)
def summed_gradients(job):
    for part in policy(job)["noise_pred_net"].modules():
        if hasattr(part, "set_gradient_divide_factor"):
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)


@fault(
    "FSDP's gradient sync is left off",
    at="epoch begins",
    config=sharded,
    says=["gradient of nets.policy.obs_encoder.layer.weight, reduced by FSDP, is not the mean"],
)
def unsynchronised_shards(job):
    policy(job)["obs_encoder"].set_requires_gradient_sync(False)


@fault(
    "an optimizer has a parameter outside every unit",
    at="construction",
    config=sharded,
    says=["WrapError", "optimizer policy updates nets.extra.weight [2, 2], which is outside every"],
)
def outside_every_unit(job):
    job.algo.nets["extra"] = nn.Linear(2, 2)
    optimizer(job).add_param_group({"params": list(job.algo.nets["extra"].parameters())})


@fault(
    "a parameter is added after sharding",
    at="epoch begins",
    config=sharded,
    says=["policy.obs_encoder.extra was added", EVERYWHERE],
)
def added_after_sharding(job):
    policy(job)["obs_encoder"].extra = nn.Parameter(torch.ones(2))


@fault(
    "a sharded net is called outside validation and rollouts",
    at="stepped",
    config=sharded,
    says=["WrapError", "net policy.obs_encoder was called in eval() or under no_grad() on rank"],
)
def called_alone(job):
    with torch.no_grad():
        policy(job)["obs_encoder"](torch.ones(2, 4))
