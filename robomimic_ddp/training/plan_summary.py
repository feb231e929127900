"""The plan that is printed before training: a line for each decision."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from robomimic_ddp import terminal
from robomimic_ddp.config import machine, paths, tree
from robomimic_ddp.config.host import net_sizes
from robomimic_ddp.config.planning import learning_rate, memory
from robomimic_ddp.data.rlds.loaders import buffer_memory
from robomimic_ddp.data.sampling.nested_loaders import datasets_of
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.training import rollouts
from robomimic_ddp.verify import data_fingerprint

_EVERY_BATCH = "step_every_batch"
_NAMED_SETS = 3
_RATES = ("initial_lr", "max_lr", "lr")
"""Where an optimizer's group has the rate that it was made with: schedules change "lr" at once."""
_SMALL_BYTES = 2 * 10**9
"""What a policy keeps on a GPU fits with DDP below this, and FSDP is not mentioned."""


def beginning(run: Any) -> Iterator[str]:
    """Yield what is decided before the host prints anything, reads data and makes nets; the whole
    plan comes before training.
    """
    yield "\n============= robomimic-ddp: plan ============="
    yield run.plan.describe()
    yield from _length_of_run(run.plan, tree.at(run.config, "experiment.epoch_every_n_steps"))
    follow = "learning rate, data, memory and run directory"
    yield f"{follow} follow in the whole plan, before training\n"


def fitted(text: str) -> str:
    """`text` for the terminal that this process prints to, if any: a line too wide continues below,
    further to the right. The host's sys.stdout, which also writes its log, is none.
    """
    columns = terminal.width(sys.__stdout__) if sys.__stdout__ is not None else None
    pieces = (terminal.wrapped(line, columns, "  ", first="") or [""] for line in text.split("\n"))
    return "\n".join(line for piece in pieces for line in piece)


def lines(run: Any, model: Any = None) -> Iterator[str]:
    """Mode, ranks and devices, batch, workers, learning rate, steps, data, precision and run
    directory of a `run.Run` that trains the host's `model`, as far as known.
    """
    yield run.plan.describe(in_parallel=run.trains_in_parallel)
    for pair in dict.fromkeys(run.built.learning_rates):
        rules = (run.plan.lr_scaling, run.plan.lr_choices)
        chosen = run.settings.sources["lr_scaling"] != "default"
        resumes = run.resume.source is not None and run.resume.source.kind == "state"
        yield learning_rate.describe(*pair, *rules, chosen, resumes)
    yield from _not_scaled(run, model)
    loader = run.built.loaders.get("train")
    yield from _schedule(run, loader)
    yield from _data(run, loader)
    yield from buffer_memory.lines(loader, run.plan.local_world_size, machine.machine_memory())
    if run.built.nets:
        if sizes := net_sizes.note(_shapes(run), run.config):
            yield f"net: {sizes}"
        yield f"memory: {_state(run)}"
    if run.steps is not None:
        yield f"precision: {run.options.precision}"
        yield run.steps.line
    if run.output.directory is not None:
        yield f"run directory: {run.output.directory}"
        yield from _rollouts(run)


def _not_scaled(run: Any, model: Any) -> Iterator[str]:
    """Yield the warning where optimizers of `model` were made with rates that `api.scale_lr` has
    not returned, and the plan has others than configured.
    """
    scaled = [after for _, after in run.built.learning_rates]
    has_loaded = run.resume.by_host or run.settings.fine_tuning
    if model is None or run.lr_factor == 1 or (scaled and has_loaded):
        return  # a checkpoint may have set rates of its run
    missed = []
    for name, optimizer in host_algo.named_optimizers(model):
        values = [group.get(key) for key in _RATES for group in optimizer.param_groups]
        rates = [float(value) for value in values if value is not None]
        if rates and not any(math.isclose(*pair, rel_tol=1e-6) for pair in product(rates, scaled)):
            missed.append(f"{name} (learning rate {rates[0]:g})")
    if missed:
        whose = "optimizers" if len(missed) > 1 else "optimizer"
        yield (
            f"warning: ddp.lr_scaling={run.plan.lr_scaling} does not reach the {whose} "
            f"{', '.join(missed)}: a rate that is not read from optim_params is not scaled. Write "
            "lr=DDPUtils.scale_lr(...) where the optimizer is made"
        )


def _shapes(run: Any) -> Iterator[tuple[str, torch.Size]]:
    return ((name, value.shape) for net in run.built.nets for name, value in net.named_parameters())


def _state(run: Any) -> str:
    parameters = sum(p.numel() for net in run.built.nets for p in net.parameters())
    shards = max(2, run.plan.world_size // run.options.fsdp_replicas)
    device = torch.device(run.plan.device)
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    gpu_bytes = torch.cuda.get_device_properties(device).total_memory if on_gpu else None
    if run.options.mode != "fsdp":
        whole, counted = memory.size(parameters, _averages(run))
        if whole < _SMALL_BYTES:
            return f"{counted} on each rank; activations come on top"
    return memory.describe(parameters, shards, gpu_bytes, _averages(run))


def _averages(run: Any) -> int:
    """Return the number of copies of averaged weights."""
    if tree.at(run.config, "algo.ema.enabled") is False:
        return 0
    # Those of preset safe are the host's: a list and a net of averages, each in its own memory.
    return 2 if run.options.preset == "safe" else 1


def _rollouts(run: Any) -> Iterator[str]:
    enabled = tree.at(run.config, "experiment.rollout.enabled")
    if run.options.rollouts != "evaluate":
        why = rollouts.why_on_main(run.config)
        if why and enabled and run.plan.world_size > 1:
            yield f"rollouts: rank 0 plays all episodes ({why})"
        return
    checkpoints = "a checkpoint is kept of each epoch with rollouts"
    if not enabled:
        checkpoints = "no checkpoints are kept, since experiment.rollout.enabled is false"
    yield (
        f"rollouts: run by `robomimic-ddp evaluate {run.output.directory} --follow`, for which "
        f"{checkpoints}; it writes best_success.pth in place of the host's best checkpoints by "
        "success and return"
    )


def _schedule(run: Any, loader: Any) -> Iterator[str]:
    epochs = run.progress.last_epoch or tree.at(run.config, "train.num_epochs")
    if epochs is None:
        return
    configured = tree.at(run.config, "experiment.epoch_every_n_steps")
    steps = run.plan.steps_text(configured) if configured else data_fingerprint.length(loader)
    of = "" if steps is None else f" of {steps} step(s)"
    yield f"schedule: {epochs} epoch(s){of}"
    counted = (value for key, value in tree.named(run.config) if key.endswith(_EVERY_BATCH))
    if tree.at(run.config, "experiment.validate") and True in counted:
        yield (
            f"schedule: the learning rate follows steps ({_EVERY_BATCH}); on one rank validation "
            "batches count, too, as in the host, on several they do not"
        )
    yield from _length_of_run(run.plan, configured)


def _length_of_run(plan: Any, configured: int | None) -> Iterator[str]:
    """Yield what more samples in a step mean for the number of steps."""
    times = f"{plan.batches_per_step:g}"
    if plan.shortening != 1:
        steps = (
            f"{configured} -> {plan.steps_text(configured)}" if configured else f"1/{times} of the"
        )
        yield (
            f"schedule: ddp.schedule=samples: {steps} steps in an epoch, and over the run as many "
            "samples as one process; schedules of the learning rate that count steps shorten alike"
        )
    elif plan.several_ranks and configured and plan.batches_per_step > 1:
        yield (
            f"schedule: {plan.world_size} ranks take {times} x the samples in each step, and as "
            f"many steps as one process; ddp.schedule=samples takes 1/{times} of the steps, and so "
            "as many samples as one process"
        )


def _data(run: Any, loader: Any) -> Iterator[str]:
    names = list(paths.datasets(tree.at(run.config, "train")))
    others = f" and {len(names) - _NAMED_SETS} more" if len(names) > _NAMED_SETS else ""
    shown = [", ".join(names[:_NAMED_SETS]) + others] if names else []
    if run.built.sharded_stream:
        shown.append(
            "the host's own pipeline, each rank on its share of episodes for the whole run "
            "(exact passes and exact resume are for robomimic-ddp's loader only)"
        )
        yield f"data: {'; '.join(shown)}"
        return
    samples, batches = map(data_fingerprint.length, (getattr(loader, "dataset", None), loader))
    if samples is not None:
        shown.append(f"{samples} samples over all ranks")
    if batches is not None:
        in_a_step = run.plan.samples_per_step
        rest = (samples or 0) - batches * in_a_step
        is_dropped = getattr(loader, "drop_last", False) and 0 < rest < in_a_step
        without = f", without the {rest} sample(s) that do not fill one" if is_dropped else ""
        shown.append(f"a pass is {batches} steps{without}")
    if shown:
        yield f"data: {'; '.join(shown)}"
    for dataset in datasets_of(loader):
        if getattr(dataset, "prepared", None):
            yield f"data: {dataset.name} is {dataset.prepared}"
