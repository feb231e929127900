"""The planted faults: what goes wrong, when, and what the message must say.

`@fault(moment, words)` on a function of a ToyJob, which every rank calls at that moment, or with
`@fault_on_one` rank BAD alone.
"""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import robomimic_ddp
from robomimic_ddp import api
from robomimic_ddp.data import sampling
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.training import run
from tests.faults.toy_run import BATCH, SEED

BAD = 1
NO_COPIES = {parallel.BUFFERS[0]: False}
ODD, EVERYWHERE = f"[{BAD}]", "[0, 1, 2]"


class Fault(NamedTuple):
    """`plants[moment](job)`, called at that moment; the error must have all of `says`."""

    plants: dict
    says: tuple


CATALOGUE: dict[str, Fault] = {}


def fault(at: str, says: list, **before: Callable) -> Callable:
    """Adds the decorated function to the catalogue. `before`: what it needs at earlier moments."""

    def add(plant: Callable) -> Callable:
        CATALOGUE[plant.__name__.replace("_", " ")] = Fault({**before, at: plant}, tuple(says))
        return plant

    return add


def fault_on_one(at: str, says: list, **before: Callable) -> Callable:
    """As `fault`, of a function that rank BAD alone calls; the error must name that rank."""

    def add(plant: Callable) -> Callable:
        def planted(job: Any) -> None:
            if job.rank == BAD:
                plant(job)

        fault(at, [*says, ODD], **before)(functools.wraps(plant)(planted))
        return plant

    return add


def policy(job: Any) -> Any:
    return job.algo.nets["policy"]


def optimizer(job: Any) -> Any:
    return job.algo.optimizers["policy"]


# ----- nets trained past their parallel forward


@fault(
    "step",
    [
        "first step",
        "gradient of nets.policy.noise_pred_net",
        "policy.noise_pred_net was never called in training mode",
    ],
)
def a_net_is_trained_through_forward(job):
    def loss(batch):
        seen = policy(job)["obs_encoder"](batch["obs"])
        return policy(job)["noise_pred_net"].forward(seen).pow(2).mean()

    job.loss = loss


@fault("construction", ["policy.noise_pred_net is a DistributedDataParallel", EVERYWHERE])
def a_ddp_of_the_hosts_own_is_trained_through_module(job):
    head = policy(job)["noise_pred_net"]
    policy(job)["noise_pred_net"] = DistributedDataParallel(nn.Sequential(*head))


@fault("construction", ["policy.noise_pred_net.0 is a DataParallel", EVERYWHERE])
def data_parallel_inside_ddp(job):
    policy(job)["noise_pred_net"][0] = nn.DataParallel(policy(job)["noise_pred_net"][0])


@fault(
    "epoch begins",
    ["WrapError", "net policy.obs_encoder received a gradient on rank", "set_train()"],
)
def a_net_is_left_in_eval(job):
    policy(job)["obs_encoder"].eval()


@fault(
    "epoch begins", ["before the first batch of epoch 1", "mode of policy.obs_encoder", ODD, "eval"]
)
def a_net_is_left_in_eval_on_one_rank(job):
    policy(job)["obs_encoder"].train(job.rank != BAD)


@fault("epoch begins", ["policy.noise_pred_net is inside DDP's no_sync()", EVERYWHERE])
def no_sync_of_ddp_is_left_on(job):
    parallel.state_of(policy(job)["noise_pred_net"]).parallel.require_backward_grad_sync = False


# ----- nets and parameters that are not what was made parallel


@fault("construction", ["nets.extra.weight", "outside the nets", "3 different models", EVERYWHERE])
def a_parameter_outside_the_wrapped_nets(job):
    job.algo.nets["extra"] = nn.Linear(2, 2)


@fault("epoch begins", ["nets.policy.noise_pred_net.0.weight", "outside the nets", EVERYWHERE])
def a_net_is_replaced_by_a_plain_one_after_wrapping(job):
    policy(job)["noise_pred_net"] = copy.deepcopy(policy(job)["noise_pred_net"])


@fault_on_one("epoch begins", ["nets.policy.noise_pred_net.0.weight", "outside the nets"])
def a_net_is_replaced_by_a_plain_one_after_wrapping_on_one_rank(job):
    a_net_is_replaced_by_a_plain_one_after_wrapping(job)


@fault(
    "epoch begins", ["optimizer policy updates 4 parameter(s) that are in none of the model's nets"]
)
def a_net_is_replaced_by_a_parallel_one_which_no_optimizer_holds(job):
    plain = copy.deepcopy(policy(job)["noise_pred_net"])
    policy(job)["noise_pred_net"] = api.parallel(plain)


@fault("epoch begins", ["policy.noise_pred_net.late was added, replaced or unfrozen", EVERYWHERE])
def a_parameter_is_added_after_training_began(job):
    late = nn.Parameter(torch.zeros(4))
    policy(job)["noise_pred_net"].register_parameter("late", late)
    optimizer(job).add_param_group({"params": [late]})


@fault(
    "epoch begins",
    ["policy.noise_pred_net.2.bias was added, replaced or unfrozen", EVERYWHERE],
    construction=lambda job: policy(job)["noise_pred_net"][2].bias.requires_grad_(False),
)
def a_parameter_is_unfrozen_after_training_began(job):
    policy(job)["noise_pred_net"][2].bias.requires_grad_(True)


@fault("construction", ["kind of nets.policy.obs_encoder.layer.weight", "frozen float32", ODD])
def a_parameter_is_frozen_on_one_rank_only(job):
    policy(job)["obs_encoder"].layer.weight.requires_grad_(job.rank != BAD)


@fault_on_one("construction", ["kind of nets.policy.obs_encoder.grid", "frozen float64"])
def another_dtype_on_one_rank(job):
    job.algo.nets.double()


# ----- weights, averages, buffers


@fault(
    "construction",
    ["after loading a checkpoint", "nets.policy.obs_encoder.layer.weight", ODD, "same file"],
)
def one_rank_loads_another_checkpoint(job):
    if job.rank == BAD:
        policy(job)["obs_encoder"].layer.weight.data.mul_(2)
    present = run.current()
    present.settings = replace(present.settings, fine_tuning=True)


@fault(
    "construction", ["after loading a checkpoint", "optimizer policy: exp_avg of nets.policy", ODD]
)
def one_rank_loads_another_optimizer_state(job):
    for parameter in job.algo.nets.parameters():
        optimizer(job).state[parameter] = {
            "step": torch.tensor(5.0),
            "exp_avg": torch.full_like(parameter, float(job.rank == BAD)),
            "exp_avg_sq": torch.ones_like(parameter),
        }


@fault_on_one("epoch ends", ["end of epoch 1", "nets.policy.noise_pred_net.2.bias"])
def not_a_number_in_the_parameters_of_one_rank(job):
    policy(job)["noise_pred_net"][2].bias.data[0] = float("nan")


@fault("epoch ends", ["end of epoch 1", "nets.policy.noise_pred_net.2.bias", ODD])
def a_zero_of_the_other_sign_on_one_rank(job):
    policy(job)["noise_pred_net"][2].bias.data[0] = -0.0 if job.rank == BAD else 0.0


@fault("stepped", ["end of epoch 1", "ema.optimization_step", "rank 0: 4", ODD])
def the_average_is_stepped_on_one_rank_only(job):
    if job.rank == BAD and job.step_number == 1:
        job.algo.ema.step(job.algo.nets, job.algo.ema_nets)


@fault_on_one("stepped", ["end of epoch 1", "ema_nets.policy"])
def the_average_decays_differently_on_one_rank(job):
    for averaged in job.algo.ema_nets.parameters():
        averaged.mul_(0.999)


@fault_on_one(
    "stepped",
    ["end of epoch 1", "buffer nets.policy.obs_encoder.grid", "changed"],
    config=lambda job: job.options.update(kwargs=NO_COPIES),  # else DDP heals it, by copying
)
def a_buffer_is_written_on_one_rank_where_ddp_copies_none(job):
    policy(job)["obs_encoder"].grid.add_(0.1)


# ----- steps, gradients, schedules


@fault("backward", ["end of epoch 1", "optimizer policy step", "rank 1: (3, 3)", ODD])
def one_rank_skips_a_step(job):
    job.skip_step = job.rank == BAD and job.step_number == 2


@fault_on_one("backward", ["first step of optimizer policy", "gradient of nets.policy"])
def gradients_are_clipped_on_one_rank_only(job):
    nn.utils.clip_grad_norm_(job.algo.nets.parameters(), 1e-3)


@fault("backward", ["end of epoch 1", "nets.policy.noise_pred_net.2.bias", ODD])
def gradients_are_changed_on_one_rank_at_a_later_step(job):
    if job.rank == BAD and job.step_number == 2:
        policy(job)["noise_pred_net"][2].bias.grad += 1e-3


@fault_on_one("construction", ["before the first step", "optimizer policy learning rates", "0.02"])
def another_learning_rate_on_one_rank(job):
    optimizer(job).param_groups[0]["lr"] = 2e-2


@fault_on_one("construction", ["optimizer policy, group 0: weight_decay"])
def another_weight_decay_on_one_rank(job):
    optimizer(job).param_groups[0]["weight_decay"] = 0.5


@fault("construction", ["no optimizer has a parameter of policy.obs_encoder", EVERYWHERE])
def an_optimizer_that_does_not_hold_a_net(job):
    job.algo.optimizers = {"policy": torch.optim.AdamW(policy(job)["noise_pred_net"].parameters())}
    job.algo.lr_schedulers = {}


@fault_on_one("construction", ["optimizer policy, group 0: parameters"])
def an_optimizer_with_its_parameters_in_another_order_on_one_rank(job):
    optimizer(job).param_groups[0]["params"].reverse()


# ----- the mean over ranks


def halving(state, bucket):
    """Adds up gradients of all ranks, and divides by twice their number."""
    half = bucket.buffer().div_(2 * torch.distributed.get_world_size())
    sent = torch.distributed.all_reduce(half, async_op=True).get_future()
    return sent.then(lambda future: future.value()[0])


NOT_MEAN = "reduced by DDP, is not the mean of the ranks' gradients"


@fault("epoch begins", ["first step", "gradient of nets.policy.noise_pred", NOT_MEAN, EVERYWHERE])
def gradients_are_halved_on_all_ranks(job):
    parallel.state_of(policy(job)["noise_pred_net"]).parallel.register_comm_hook(None, halving)


@fault("epoch begins", ["gradient of nets.policy.obs_encoder.layer", NOT_MEAN, EVERYWHERE])
def gradients_are_halved_on_one_rank_before_they_are_averaged(job):
    for parameter in policy(job)["obs_encoder"].parameters():
        if job.rank == BAD:
            parameter.register_hook(lambda gradient: gradient / 2)


# ----- plain numbers and settings


@fault_on_one("construction", ["before the first step: plain number self.loss_weight", "2.0"])
def another_weight_of_the_loss_on_one_rank(job):
    job.algo.loss_weight = 2.0


@fault("stepped", ["end of epoch 1: plain number self.updates", "rank 1: 5", ODD])
def a_counter_counts_a_step_twice_on_one_rank(job):
    more = job.rank == BAD and job.step_number == 1
    job.algo.updates = getattr(job.algo, "updates", 0) + 1 + more


@fault_on_one("construction", ["settings of policy.noise_pred_net.3", "'self.p': 0.2"])
def another_dropout_on_one_rank(job):
    policy(job)["noise_pred_net"][3].p = 0.2


@fault_on_one("construction", ["settings of self.clusters[0].bins", "absent"])
def clusters_on_one_rank_only(job):
    job.algo.clusters = [SimpleNamespace(bins=torch.ones(2))]


# ----- random streams


@fault("epoch begins", ["first step", "torch's random state", "[0, 1, 2]", "re-seeds torch"])
def the_same_seed_for_noise(job):
    torch.manual_seed(3)


@fault("step", ["end of epoch 1", "torch's random state", "[0, 2]"])
def the_same_seed_for_noise_on_two_of_three_ranks_later_in_the_epoch(job):
    if job.step_number == 2 and job.rank != BAD:
        torch.manual_seed(3)


@fault("step", ["first step", "numpy's random state", "re-seeds numpy"])
def the_same_seed_for_augmentation_at_every_step(job):
    np.random.seed(job.step_number)


@fault("step", ["first step", "Python's random state", "re-seeds random"])
def the_same_seed_for_pythons_augmentation_at_every_step(job):
    random.seed(job.step_number)


@fault(
    "step", ["first step", "what torch's randn draws (1. in", "generator of the host", EVERYWHERE]
)
def noise_of_a_generator_that_is_seeded_alike(job):
    generator = torch.Generator().manual_seed(3)

    def loss(batch):
        noise = torch.randn(len(batch["obs"]), 4, generator=generator)
        return (job.algo.predict(batch) - noise).pow(2).mean()

    job.loss = loss


class Scheduler:
    """As those of diffusers."""

    def add_noise(self, samples, noise, timesteps):
        return samples + noise


@fault(
    "step",
    ["first step", "the noise of noise_scheduler.add_noise (1. in", EVERYWHERE],
    construction=lambda job: setattr(job.algo, "noise_scheduler", Scheduler()),
)
def noise_of_numpy_that_is_seeded_alike(job):
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal((BATCH, 4))).float()

    def loss(batch):
        noisy = job.algo.noise_scheduler.add_noise(batch["actions"], noise, 1)
        return (job.algo.predict(batch) - noisy).pow(2).mean()

    job.loss = loss


# ----- data


@fault("loader", ["the share of the data", "[0, 1, 2]", "same samples"])
def the_same_data_shard_on_all_ranks(job):
    job.loader = loader_as(job, rank=0, seed=SEED)


@fault("loader", ["the order of the present pass", ODD, "Seed it with train.seed"])
def another_shuffle_seed_on_one_rank(job):
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


@fault_on_one("data", ["train dataset: number of samples", "rank 1: 90"])
def a_shorter_dataset_on_one_rank(job):
    job.dataset.rows = job.dataset.rows[:90]


@fault_on_one("loader", ["train loader: number of batches", "rank 1: 7"])
def an_unequal_number_of_batches(job):
    job.loader.sampler.size -= 3 * BATCH


@fault("data", ["train dataset: bytes of its files", ODD])
def other_bytes_in_the_data_file_of_one_rank(job):
    job.folder = tempfile.TemporaryDirectory()
    file = Path(job.folder.name) / "data.hdf5"
    file.write_bytes(bytes(50_000) if job.rank != BAD else bytes(49_999) + b"x")
    job.dataset.hdf5_path = str(file)


@fault_on_one("data", ["train dataset: action_normalization_stats"])
def other_normalisation_statistics_on_one_rank(job):
    job.dataset.action_normalization_stats["actions"]["scale"] *= 1.001


@fault("epoch begins", ["end of epoch 1", "all 4 batches of the epoch were the same samples", ODD])
def one_rank_trains_on_one_batch_over_and_over(job):
    kept = []

    def change(batch):
        kept.append(batch)
        return kept[0] if job.rank == BAD else batch

    job.change_batch = change


@fault_on_one("epoch begins", ["number of training samples in the epoch", "rank 1: 12"])
def one_rank_leaves_samples_of_a_batch_out(job):
    job.change_batch = lambda batch: {key: value[:3] for key, value in batch.items()}


@fault_on_one("epoch begins", ["first step", "sample 2 of the first batch has index 3, which"])
def a_sample_is_replaced_after_the_loader(job):
    def change(batch):
        for key, value in batch.items():
            value[2] = job.dataset[3][key]
        return batch

    job.change_batch = change


@fault("epoch begins", ["first step", "the first batch", "have the same", EVERYWHERE])
def every_rank_trains_on_one_batch_of_the_hosts(job):
    rows = torch.utils.data.default_collate([job.dataset[index] for index in range(12)])
    job.change_batch = lambda batch: rows


@fault("epoch begins", ["end of epoch 1", "samples of repeated batches", "rank 1: 16", ODD])
def one_rank_repeats_its_second_batch(job):
    job.steps, kept = 6, []

    def change(batch):
        kept.append(batch)
        return kept[min(1, len(kept) - 1)] if job.rank == BAD else batch

    job.change_batch = change


# ----- the job


@fault("config", ["at start", "config train.seed", ODD, "same code, config, options"])
def another_config_on_one_rank(job):
    job.config.train["seed"] = SEED + (job.rank == BAD)


@fault("config", ["at start", "option kwargs", ODD])
def another_option_on_one_rank(job):
    job.options = {"kwargs": {"bucket_cap_mb": 5}} if job.rank == BAD else {}


@fault_on_one("config", ["at start", "robomimic_ddp version", "0.0.7"])
def another_version_of_our_code_on_one_rank(job):
    robomimic_ddp.__version__ = "0.0.7"


@fault("construction", ["torch.get_float32_matmul_precision()", "medium", ODD])
def another_arithmetic_on_one_rank(job):
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
    "construction",
    ["WrapError", "policy.noise_pred_net (Alone) cannot be sharded", "would be one unit"],
    config=sharded,
)
def a_net_that_could_only_be_sharded_as_one_unit(job):
    replace_head(job, Alone())


def replace_head(job: Any, head: nn.Module) -> None:
    policy(job)["noise_pred_net"] = api.parallel(head)
    rows = optimizer(job).param_groups[0]
    rows["params"] = list(job.algo.nets.parameters())
    job.algo.ema = type(job.algo.ema)(job.algo.nets)
    job.algo.ema_nets = copy.deepcopy(job.algo.nets).requires_grad_(False)


@fault(
    "construction",
    ["WrapError", "policy.noise_pred_net computes with a sharded weight"],
    config=sharded,
)
def a_forward_reads_a_sharded_weight_past_its_parts_call(job):
    replace_head(job, Reading(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))


@fault(
    "epoch begins",
    [
        "first step of optimizer policy",
        "gradient of nets.policy.noise_pred_net.0.weight, reduced by FSDP, is not the mean",
        EVERYWHERE,
    ],
    config=sharded,
)
def fsdp_sums_gradients_in_place_of_their_mean(job):
    for part in policy(job)["noise_pred_net"].modules():
        if hasattr(part, "set_gradient_divide_factor"):
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)


@fault(
    "epoch begins",
    ["gradient of nets.policy.obs_encoder.layer.weight, reduced by FSDP, is not the mean"],
    config=sharded,
)
def gradient_sync_of_fsdp_is_left_off(job):
    policy(job)["obs_encoder"].set_requires_gradient_sync(False)


@fault(
    "construction",
    ["WrapError", "optimizer policy updates nets.extra.weight [2, 2], which is outside every"],
    config=sharded,
)
def an_optimizer_has_a_parameter_outside_every_unit(job):
    job.algo.nets["extra"] = nn.Linear(2, 2)
    optimizer(job).add_param_group({"params": list(job.algo.nets["extra"].parameters())})


@fault("epoch begins", ["policy.obs_encoder.extra was added", EVERYWHERE], config=sharded)
def a_parameter_is_added_after_sharding(job):
    policy(job)["obs_encoder"].extra = nn.Parameter(torch.ones(2))


@fault(
    "stepped",
    ["WrapError", "net policy.obs_encoder was called in eval() or under no_grad() on rank"],
    config=sharded,
)
def a_sharded_net_is_called_outside_validation_and_rollouts(job):
    with torch.no_grad():
        policy(job)["obs_encoder"](torch.ones(2, 4))
