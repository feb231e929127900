"""A pure function from launcher's environment, options, devices and host's config to a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from robomimic_ddp.config import tree
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.options import DEFAULTS, Options, ResolvedOptions
from robomimic_ddp.config.planning import data_workers, learning_rate, parallel_mode
from robomimic_ddp.errors import PlanError


@dataclass(frozen=True)
class RunPlan:
    """Everything that is decided before training.

    lr_scaling: the rule after precedence (a learning rate on the command line turns it off);
    batch_per_rank: samples of one forward; samples_per_step: batch per rank x world size x
    accumulate; data_workers: None for RLDS data; notes: sentences for the user.
    """

    mode: str
    rank: int
    world_size: int
    local_rank: int
    device: str
    backend: str
    timeout_seconds: float
    configured_batch: int
    batch_per_rank: int
    samples_per_step: int
    lr_scaling: str
    visible_gpus: int
    local_world_size: int
    data_workers: int | None
    cores: int
    notes: tuple
    accumulate: int
    schedule: str

    @property
    def batches_per_step(self) -> float:
        """Batches of the config in one step: samples per step / train.batch_size."""
        return self.samples_per_step / self.configured_batch

    @property
    def shortening(self) -> float:
        """How many steps of the config one step stands for; 1 under ddp.schedule=steps."""
        return self.batches_per_step if self.schedule == "samples" else 1.0

    def steps_of(self, configured: int, epoch: int = 1) -> int:
        """Optimizer steps of epoch `epoch` for which the config has `configured` ones.

        Under ddp.schedule=samples the first `epoch` epochs together take the samples that one
        process takes, rounded up to a whole step: what an epoch takes too many, later ones take
        less.
        """
        if self.schedule != "samples":
            return configured
        until, before = (
            number * configured * self.configured_batch for number in (epoch, epoch - 1)
        )
        return -(-until // self.samples_per_step) + before // -self.samples_per_step

    def steps_text(self, configured: int) -> str:
        """Return the steps of an epoch for the user, such as "33 or 34"."""
        first = self.steps_of(configured)
        of_samples = self.schedule == "samples"
        if of_samples and configured * self.configured_batch % self.samples_per_step:
            return f"{first - 1} or {first}"
        return str(first)

    @property
    def samples_per_rank(self) -> int:
        """Samples of one rank in one step: a batch of its train loader."""
        return self.batch_per_rank * self.accumulate

    @property
    def several_ranks(self) -> bool:
        return self.world_size > 1

    @property
    def lr_choices(self) -> dict[str, float]:
        """Scaling rule -> factor of the configured learning rate."""
        return learning_rate.factors(self.samples_per_step, self.configured_batch)

    def lr_factor(self, parameters: int, fine_tuning: bool) -> float:
        """Factor of the configured learning rate for a policy of `parameters` parameters."""
        auto = self.lr_scaling == "auto"
        rule = learning_rate.auto_rule(parameters, fine_tuning) if auto else self.lr_scaling
        return self.lr_choices[rule]

    def describe(self, in_parallel: bool = True) -> str:
        """One line for each decision; the main rank prints them before training."""
        where = "on the CPU"
        if self.visible_gpus:
            where = f"main rank on {self.device}, {self.visible_gpus} visible GPU(s)"
        mode = parallel_mode.NAMES[self.mode if in_parallel else "single"]
        micro = f" x {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        workers = "none, since one process of each rank reads RLDS data"
        if self.data_workers is not None:
            workers = f"{self.data_workers} per rank x {self.local_world_size} rank(s) on this node"
        lines = [
            f"mode: {mode}, {self.world_size} rank(s), {where}",
            *self._devices(),
            f"batch: {self.batch_per_rank} per rank x {self.world_size}{micro} = "
            f"{self.samples_per_step} samples per step (train.batch_size={self.configured_batch})",
            f"data workers: {workers}, {self.cores} CPU core(s)",
        ]
        return "\n".join(lines + list(self.notes))

    def _devices(self) -> Iterator[str]:
        if not self.several_ranks:
            return
        last, nodes = self.local_world_size - 1, -(-self.world_size // self.local_world_size)
        here = self.device.partition(":")[0]
        if here == "cuda":
            seen = min(last, self.visible_gpus - 1)
            here = "cuda:0" if seen == 0 else f"cuda:0 to cuda:{seen}"
        over = "NCCL" if "nccl" in self.backend else "gloo"
        yield (
            f"devices: {here}, {last + 1} rank(s) on each of {nodes} node(s); gradients over {over}"
        )


def make_plan(
    env: LaunchEnv,
    resolved: ResolvedOptions,
    *,
    visible_gpus: int,
    use_cuda: bool,
    batch_size: int,
    lr_on_command_line: bool = False,
    workers: int | None = 0,
    cores: int = 1,
    fsdp_lacks: str | None = None,
    epoch_steps: int | None = None,
) -> RunPlan:
    """Return the plan of this process. Ranks differ in rank, local rank and device only.

    visible_gpus: counted after CUDA_VISIBLE_DEVICES; use_cuda: the host's setting; workers: the
    host's data workers, or None for RLDS data; fsdp_lacks: what the installed torch lacks for
    FSDP2, if it does; epoch_steps: the config's steps of an epoch, None where an epoch is a pass.
    Raises LaunchError or PlanError on a contradiction.
    """
    options = resolved.values
    gpus = visible_gpus if use_cuda else 0
    mode = parallel_mode.mode_of(env, options, gpus)
    device = parallel_mode.local_device(env, gpus)
    if mode == "fsdp":
        parallel_mode.require_shardable(resolved, env.world_size, device, fsdp_lacks)
    per_rank = batch_per_rank(options, batch_size, env.world_size)
    if options.workers != "config" and workers is not None:
        workers = data_workers.of_share(options.workers, cores // env.local_world_size)
    samples_per_step = per_rank * env.world_size * options.accumulate
    if options.schedule == "samples" and epoch_steps:
        _require_a_step(epoch_steps, batch_size, samples_per_step)
    lr_scaling, lr_notes = learning_rate.rule_and_notes(resolved, lr_on_command_line)
    return RunPlan(
        mode=mode,
        rank=env.rank,
        world_size=env.world_size,
        local_rank=env.local_rank,
        device=device,
        backend=parallel_mode.backend_for(device, options.backend),
        timeout_seconds=options.timeout,
        configured_batch=batch_size,
        batch_per_rank=per_rank,
        samples_per_step=samples_per_step,
        lr_scaling=lr_scaling,
        visible_gpus=gpus,
        local_world_size=env.local_world_size,
        data_workers=workers,
        cores=cores,
        notes=(
            *_hidden_gpus(env, visible_gpus),
            *data_workers.notes(workers, env.local_world_size, options, cores),
            *_without_effect(mode, options),
            *lr_notes,
        ),
        accumulate=options.accumulate,
        schedule=options.schedule,
    )


def _require_a_step(epoch_steps: int, batch: int, samples_per_step: int) -> None:
    """Raises PlanError for an epoch with fewer samples than one step takes."""
    of_epoch = epoch_steps * batch
    if of_epoch < samples_per_step:
        raise PlanError(
            f"ddp.schedule=samples: an epoch of {epoch_steps} step(s) (experiment.epoch_every_n_"
            f"steps) x {batch} samples (train.batch_size) = {of_epoch} samples is less than one "
            f"step of all ranks, which takes {samples_per_step}. Use at least "
            f"experiment.epoch_every_n_steps={-(-samples_per_step // batch)} and fewer epochs, or "
            "ddp.schedule=steps."
        )


def _hidden_gpus(env: LaunchEnv, visible_gpus: int) -> Iterator[str]:
    """CUDA hides the first device that is not there, and all after it; "" and -1 hide all."""
    names = (env.cuda_visible_devices or "").replace(" ", "").partition("-1")[0].strip(",")
    named = len(names.split(",")) if names else 0
    if visible_gpus < named:
        on_cpu = "" if visible_gpus else ", so training runs on the CPU"
        yield (
            f"warning: CUDA_VISIBLE_DEVICES={env.cuda_visible_devices} names {named} GPU(s), but "
            f"{visible_gpus} can be seen{on_cpu}; name GPUs that nvidia-smi lists"
        )


def _without_effect(mode: str, options: Options) -> Iterator[str]:
    if mode in ("dp", "single") and options.kwargs:
        yield (
            f"note: ddp.kwargs.{next(iter(options.kwargs))} has no effect, since a single process "
            "does not use DistributedDataParallel; start the job with torchrun to use it"
        )
    for name, default in DEFAULTS.items():
        if mode != "fsdp" and name.startswith("fsdp_") and getattr(options, name) != default:
            yield (
                f"warning: ddp.{name}={str(getattr(options, name)).lower()} has no effect, since "
                "nets are not sharded; ddp.mode=fsdp shards them"
            )


def batch_per_rank(options: Options, batch: int, world: int) -> int:
    """Samples of a rank and micro-batch. Raises PlanError for a `batch` that cannot be split."""
    if not tree.is_whole(batch, 1):
        raise PlanError(f"train.batch_size={batch!r}: expected a whole number of at least 1.")
    if options.batch == "per_rank":
        return batch
    parts = world * options.accumulate
    if batch % parts:
        lower, upper = batch // parts * parts, -(-batch // parts) * parts
        choice = f"{lower} or {upper}" if lower else str(upper)
        micro = f" x {options.accumulate} micro-batches" if options.accumulate > 1 else ""
        raise PlanError(
            f"train.batch_size={batch} with ddp.batch=global does not split over {world} "
            f"ranks{micro}: {batch % parts} sample(s) would be dropped each step. Use {choice}, or "
            "ddp.batch=per_rank."
        )
    return batch // parts
