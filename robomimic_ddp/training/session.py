"""A run on one rank, from top to bottom. torchrun starts the same command on every rank, and each
of them does this:

    plan    reads the launcher's environment, the options and the host's config; asks no other rank
    join    enters the process group, and proves that all ranks were given the same job
    build   calls the host's `train()`, whose lines make nets, loaders and optimizers through `api`
    begin   makes weights equal and nets parallel, restores a saved state, and proves all of it
    epochs  lets the host train, validate and roll out; then proves, and saves what is due
    end     writes the outcome, leaves the process group, and puts the host's objects back

The rest is the host's code. What its lines call is in `api`; what they made is noted in `run.Run`.
Where `main()` makes the run directory before `train()`, `begin_run` plans and joins there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from robomimic_ddp import verify
from robomimic_ddp.checkpoint import HostFiles, host_checkpoint
from robomimic_ddp.config import env, launch_env, machine, options, tree
from robomimic_ddp.config.host import host_config, host_config_check, host_edits
from robomimic_ddp.config.planning import plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.distributed import (
    end_process,
    entry_point,
    group,
    host_algo,
    host_objects,
    main_rank,
    rng,
    watchdog,
)
from robomimic_ddp.distributed.gradients import (
    comm_hooks,
    fsdp,
    optimizer_ddp,
    parallel,
    step_guard,
    torch_arguments,
)
from robomimic_ddp.monitoring import debug, progress_bar
from robomimic_ddp.training import agreement, plan_summary, presets, run_inputs
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.state import resume
from robomimic_ddp.training.state.state_saver import StateSaver
from robomimic_ddp.training.step import schedule


def distributed(train: Callable) -> Callable:
    """Collective: decorates the host's `train(config, device, ...)` with a run.

    The device is replaced by this rank's where the host chose CUDA.
    """
    signature = inspect.signature(train)

    @functools.wraps(train)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        config = call.arguments.get("config", next(iter(call.arguments.values())))
        device = torch.device(call.arguments.get("device", "cpu"))
        requested = call.arguments.get("resume")
        can_resume = _has_flag(signature, call.arguments, "resume")
        if launch_env.read_launch_env().world_size > 1:
            host_edits.require_patched_epoch(train)
        with ExitStack() as stack:
            run = _run.current()
            if run is not None and run.begun_in_main is not None:
                stack.push(run.begun_in_main)
                run.begun_in_main = None
                resume.require_decided(run, can_resume and bool(requested))
            else:
                cuda = device.type == "cuda"
                run = stack.enter_context(begun(config, cuda, requested, can_resume))
            stack.enter_context(entry_point.at_once(run.output.end))
            device = _use_device(run, device)
            if "device" in call.arguments:
                call.arguments["device"] = device
            if can_resume:
                call.arguments["resume"] = run.resume.by_host
            with (
                run_inputs.checked(run, run.resume.by_host),
                run.stopper.scope(),
                end_process.writes_finished(),  # later, torchrun's SIGTERM would end the process
                resume.hint_on_failure(run),
            ):
                return train(*call.args, **call.kwargs)

    wrapped.is_distributed = True  # how our own entry recognises a patched host
    return wrapped


def _has_flag(signature: inspect.Signature, arguments: Mapping[str, Any], name: str) -> bool:
    """Return whether the parameter `name` is a bool: in some hosts `resume` is a checkpoint."""
    parameter = signature.parameters.get(name)
    if parameter is None:
        return False
    required = parameter.default is parameter.empty
    return isinstance(arguments.get(name) if required else parameter.default, bool)


# Plan and join


@contextmanager
def begun(
    config: Any, use_cuda: bool, requested: Any = None, can_resume: bool = False
) -> Iterator[_run.Run]:
    """Collective: a run that has been announced and knows which run it resumes. requested: the
    host's `resume`, which is a flag if it `can_resume`, else a checkpoint or None.
    """
    host_config_check.require_possible(config)
    asks_to_resume = can_resume and bool(requested)
    ckpt_path = config.experiment.get("ckpt_path", None)
    fine_tuning = not asks_to_resume and bool(ckpt_path or requested)
    with start(config, use_cuda, fine_tuning) as run:
        with entry_point.at_once(run.output.end):
            main_rank.say(plan_summary.fitted("\n".join(plan_summary.beginning(run))))
            resume.decide(config, run, asks_to_resume, can_resume)
        yield run


@contextmanager
def start(config: Any, use_cuda: bool, fine_tuning: bool = False) -> Iterator[_run.Run]:
    """Collective under a launcher: plans the run and joins the process group; leaves it at the end.
    config: the host's. use_cuda: whether the host chose a CUDA device.
    """
    launch = launch_env.read_launch_env()
    resolved = host_config.options_of(config, launch.option_texts)
    torch_arguments.require_accepted(resolved.values)
    plan_of = _planner(config, resolved, use_cuda)
    settings = Settings.of(resolved, plan_of(launch), int(config.train.seed), fine_tuning)
    run = _run.Run(settings, config)
    error: BaseException | None = None
    with _run.made_current(run):
        try:
            with ExitStack() as stack:
                stack.enter_context(rng.deterministic_algorithms(run.options.deterministic))
                if run.plan.mode in ("ddp", "fsdp"):
                    run.settings = agreement.join(run, launch, plan_of, stack)
                if not group.is_main():
                    stack.enter_context(progress_bar.without_bars())
                stack.enter_context(run.undo)
                yield run
        except BaseException as raised:
            error = raised
            raise
        finally:
            run.output.end(error)


def _planner(
    config: Any, resolved: options.ResolvedOptions, use_cuda: bool
) -> Callable[[launch_env.LaunchEnv], plan.RunPlan]:
    """Return the function that plans this job for a launcher's environment."""
    gpus, lacks = torch.cuda.device_count(), None
    if resolved.values.mode == "fsdp":
        lacks = fsdp.why_not("cuda" if use_cuda and gpus else "cpu")
    workers = int(config.train.get("num_data_workers", 0) or 0)
    return functools.partial(
        plan.make_plan,
        resolved=resolved,
        visible_gpus=gpus,
        use_cuda=use_cuda,
        batch_size=config.train.batch_size,
        lr_on_command_line=host_config.sets_learning_rate(config),
        workers=None if host_config.format_is_rlds(config) else workers,
        cores=machine.usable_cores(),
        fsdp_lacks=lacks,
        epoch_steps=tree.at(config, "experiment.epoch_every_n_steps"),
    )


# Build


def _use_device(run: _run.Run, requested: torch.device) -> torch.device:
    """Make the plan's device this rank's current one, and return it."""
    device = torch.device(run.plan.device)
    if run.plan.mode == "single" and requested.index and not launch_env.read_launch_env().launched:
        device = requested  # one plain process keeps the GPU that its caller chose
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if run.plan.several_ranks:
            run.undo.enter_context(env.rendering_on(device.index))
    return device


# Begin


def _begin(run: _run.Run, model: Any, saver: StateSaver) -> tuple[Any, int | None]:
    """Collective: makes weights equal, nets parallel and random streams separate, and restores a
    saved state. Returns what proves it, if anything does, and the last finished epoch, or None.
    """
    watchdog.reached("start of training")
    parallel_nets = parallel.parallel_among(host_algo.named_modules(model))
    for name, net in parallel_nets:
        parallel.state_of(net).name = name
    if run.plan.several_ranks:
        agreement.require_same_model(run, model)
    # Where threads have less than a core each, they wait for each other in busy loops.
    torch.set_num_threads(min(torch.get_num_threads(), run.settings.cores))
    run.settings = presets.with_preset(run.settings, bool(run.built.nets))
    run.note_settings()
    run.steps = presets.prepare(model, run.options, run.built.nets, run.undo)
    schedule.shorten(model, run.plan.shortening, run.undo)
    # Averages share memory with the nets by now, and are read once.
    sums = agreement.make_equal(model) if run.plan.several_ranks else None
    _print_plan(run, model)
    if not run.plan.several_ranks:
        return None, saver.restore()
    if run.plan.mode == "fsdp":
        sharded = fsdp.shard(model, run.options, run.plan.device)
        run.weights_for_acting = functools.partial(fsdp.whole, model, acting=True)
        main_rank.say(sharded)
    else:
        run.undo.enter_context(parallel.without_false_alarms())
        for _, net in parallel_nets:
            parallel.state_of(net).build(net, is_equal=True)
    optimizer_ddp.build(model, run.options, run.undo)
    main_rank.say(agreement.make_plain_tensors_equal(model))
    main_rank.say(comm_hooks.communicate(optimizer_ddp.reducers(model), run.options))
    rng.seed_streams(run.settings.seed, run.plan.rank)
    finished = saver.restore()
    run.guard = run.undo.enter_context(step_guard.installed(model))
    if not run.options.verify:
        return None, finished
    verifier = verify.Verifier(model, run.built.loaders.get("train"), run.options)
    verifier.start(sums if finished is None else None)
    return verifier, finished


def _print_plan(run: _run.Run, model: Any) -> None:
    added_by_max = presets.added_by_max(run.settings)
    lines = filter(None, [*plan_summary.lines(run, model), added_by_max])
    plan_text = plan_summary.fitted("\n".join(lines))
    main_rank.say(f"\n============= robomimic-ddp =============\n{plan_text}\n")


# Epochs and end


def epochs(iterable: Iterable, model: Any) -> Iterator:
    """Collective: iterates over the host's epochs in its place.

    Before the first epoch the run begins (`_begin`); after every epoch the ranks prove that they
    are still equal (`ddp.verify`), and save the run's state if it is due. A resumed run begins
    after the last epoch that it finished. After the last one the run's record gets its outcome.
    """
    run = _run.current()
    if run is None:
        yield from iterable
        return
    host_checkpoint.release(run.built.checkpoints)
    run.progress.last_epoch = iterable[-1] if isinstance(iterable, range) and iterable else None
    saver = StateSaver(run, model)
    run.undo.callback(run.output.writer.close)
    if group.is_main() and run.options.preset != "safe":
        run.output.host_files = HostFiles(run.output.writer)
    verifier, finished = _begin(run, model, saver)
    try:
        run.stopper.listen()
        if run.options.debug:
            nets = parallel.parallel_among(host_algo.named_modules(model))
            nets = nets or list(host_algo.named_roots(model))
            debug.print_start(nets, run.built.loaders.get("train"), run.plan.device)
        for epoch in iterable:
            if finished is not None and epoch <= finished:
                continue
            if verifier is not None:
                verifier.epoch_begin(epoch)
            yield epoch  # the host trains, validates, rolls out and saves
            watchdog.reached(f"end of epoch {epoch}")
            with host_objects.unchanged():
                host_algo.make_buffers_equal(model)  # rollouts may have changed some
                if verifier is not None:
                    verifier.epoch_end(epoch)
                saver.epoch_end(epoch)
        saver.finish()
    finally:
        run.output.host_files = None
        if verifier is not None:
            verifier.stop()
    proven = verify.NOT_PROVEN if verifier is None else verifier.proven
    run.note_outcome(host_algo.steps(model), proven)
