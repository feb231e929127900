"""The host's `train()` and its loop over epochs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from robomimic_ddp import verify
from robomimic_ddp.checkpoint import HostFiles, file_check, weights
from robomimic_ddp.config import env, host_config, host_keys, host_seams
from robomimic_ddp.distributed import (
    entry_point,
    fsdp,
    group,
    host_algo,
    optimizer_ddp,
    parallel,
    rng,
    step_guard,
    watchdog,
)
from robomimic_ddp.errors import PatchError
from robomimic_ddp.monitoring import debug
from robomimic_ddp.terminal import print_clean
from robomimic_ddp.training import plan_summary, resume, run_inputs, state_saver, step
from robomimic_ddp.training import run as _run


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
        can_resume = _has_flag(signature, bound.arguments, "resume")
        given = bound.arguments.get("resume")
        asked = can_resume and bool(given)
        fine_tuning = not asked and bool(config.experiment.get("ckpt_path", None) or given)
        if env.read_launch_env().world_size > 1:
            host_seams.require_patched_epoch(train)
        host_keys.require_possible(config)
        started = _run.start(config, device.type == "cuda", fine_tuning)
        with started as run, entry_point.at_once(run.end):
            chosen = torch.device(run.plan.device)
            if run.plan.mode == "single" and device.index and not env.read_launch_env().launched:
                chosen = device  # one plain process keeps the GPU that its caller chose
            if chosen.type == "cuda":
                torch.cuda.set_device(chosen)
                if run.plan.several_ranks:
                    run.undo.enter_context(env.rendering_on(chosen.index))
            if "device" in bound.arguments:
                bound.arguments["device"] = chosen
            run.print_beginning()
            host_resumes = resume.decide(config, run, asked, can_resume)
            if can_resume:
                bound.arguments["resume"] = host_resumes
            run_inputs.fill_rlds_data(config)
            trusts = run.options.values.trust_checkpoint
            run_inputs.check_inputs(config, host_resumes, trusts)
            if run.plan.several_ranks and host_config.trains_by_own_pipeline(config):
                from robomimic_ddp.data.rlds import octo_statistics

                run.undo.enter_context(octo_statistics.computed_once())
            package = type(config).__module__.partition(".")[0]
            ckpt_path = config.experiment.get("ckpt_path", None)
            untrusted = None if trusts else ckpt_path
            reads = weights.read_on_cpu(package, untrusted, before=run.writer.flush)
            run.checkpoints = run.undo.enter_context(reads)
            try:
                with run.stopper.scope(), resume.hint_on_failure(run):
                    return train(*bound.args, **bound.kwargs)
            except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
                unfit = file_check.does_not_fit(ckpt_path, error)
                if unfit is None:
                    raise
                raise unfit from error

    wrapped.is_distributed = True  # how our own entry recognises a patched host
    return wrapped


def _has_flag(signature: inspect.Signature, given: Mapping[str, Any], name: str) -> bool:
    """Whether the parameter `name` is a bool: in some hosts `resume` is a checkpoint's path."""
    parameter = signature.parameters.get(name)
    if parameter is None:
        return False
    required = parameter.default is parameter.empty
    return isinstance(given.get(name) if required else parameter.default, bool)


def epochs(iterable: Iterable, model: Any) -> Iterator:
    """Collective: goes around the epoch loop's `range(...)`.

    Before the first epoch all ranks take the main rank's weights and buffers, build their parallel
    nets, take separate random streams and prove it (`ddp.verify`); after every epoch they prove
    to be equal still, and the run's state is saved if it is due. A resumed run begins after the
    last epoch that it finished. After the last one the run's record gets its outcome.
    """
    run = _run.current()
    if run is None:
        yield from iterable
        return
    weights.release(run.checkpoints)
    run.last_epoch = iterable[-1] if isinstance(iterable, range) and iterable else None
    saver = state_saver.StateSaver(run, model)
    run.undo.callback(run.writer.close)
    if group.is_main() and run.options.values.preset != "safe":
        run.host_files = HostFiles(run.writer)
    verifier, finished = _start_training(run, model, saver)
    try:
        run.stopper.listen()
        if run.options.values.debug:
            nets = parallel.parallel_among(host_algo.named_modules(model))
            nets = nets or list(host_algo.named_roots(model))
            debug.tell_start(nets, run.loaders.get("train"), run.plan.device)
        for epoch in iterable:
            if finished is not None and epoch <= finished:
                continue
            if verifier is not None:
                verifier.epoch_begin(epoch)
            yield epoch
            watchdog.reached(f"end of epoch {epoch}")
            if verifier is not None:
                verifier.before_buffers_are_made_equal(epoch)
            if run.plan.several_ranks:
                host_algo.make_buffers_equal(model)
            if verifier is not None:
                verifier.epoch_end(epoch)
            saver.epoch_end(epoch)
        saver.finish()
    finally:
        run.host_files = None
        if verifier is not None:
            verifier.stop()
    proven = verify.NOT_PROVEN if verifier is None else verifier.proven
    run.note_outcome(host_algo.steps(model), proven)


def _start_training(
    run: _run.Run, model: Any, saver: state_saver.StateSaver
) -> tuple[Any, int | None]:
    """Collective: the one point at which weights are made equal and random streams part, and a
    saved state is put back. Returns the verifier, and the last epoch that was finished before.
    """
    watchdog.reached("start of training")
    parallel_nets = parallel.parallel_among(host_algo.named_modules(model))
    for name, module in parallel_nets:
        parallel.state_of(module).name = name
    if run.plan.several_ranks:
        _require_alike(run, model)
    _run.share_cores(run)
    chosen = step.effective(run.options, run.plan, bool(run.nets))
    run.steps = step.prepare(model, chosen, run.nets, run.undo)
    step.shorten(model, run.plan.shortening, run.undo)
    # Averages share memory by now, and are read once.
    sums = _make_equal(model) if run.plan.several_ranks else None
    added = step.added_by_max(run.options, chosen, bool(run.nets))
    if group.is_main():
        lines = [run.describe()] if added is None else [run.describe(), added]
        plan = plan_summary.fitted("\n".join(lines))
        print_clean(f"\n============= robomimic-ddp =============\n{plan}\n")
    if not run.plan.several_ranks:
        return None, saver.restore()
    if run.plan.mode == "fsdp":
        sharded = fsdp.shard(model, chosen, run.plan.device)
        run.weights_for_acting = functools.partial(fsdp.whole, model, acting=True)
        if group.is_main():
            print_clean(sharded)
    else:
        run.undo.enter_context(parallel.without_false_alarms())
        for _, module in parallel_nets:
            parallel.state_of(module).build(module, is_equal=True)
    optimizer_ddp.build(model, chosen, run.undo)
    gradients = step.communicate(optimizer_ddp.reducers(model), chosen)
    if gradients is not None and group.is_main():
        print_clean(gradients)
    rng.seed_streams(run.seed, run.plan.rank)
    finished = saver.restore()
    run.guard = run.undo.enter_context(step_guard.installed(model))
    if not run.options.values.verify:
        return None, finished
    verifier = verify.Verifier(model, run.loaders.get("train"), chosen)
    verifier.start(sums if finished is None else None)
    return verifier, finished


def _require_alike(run: _run.Run, model: Any) -> None:
    """Collective: the same nets on all ranks, and none that has loaded other weights."""
    own_mean = host_seams.own_batch_mean(type(model).__module__)
    if own_mean is not None:
        raise PatchError(
            f"{type(model).__name__} weighs its loss by `{own_mean}`: on several ranks a mean over "
            "each rank's batch. Expected DDPUtils.over_ranks(...) around it, as `robomimic-ddp "
            "apply` writes: the edit was lost. Run `robomimic-ddp apply` on the host again."
        ).on_all_ranks()
    verify.require_same_structure(model)
    loaded = run.fine_tuning or host_algo.steps(model) > 0
    if run.options.values.verify and any(group.gather_objects(loaded)):
        verify.require_same_weights(model)


def _make_equal(model: Any) -> dict[str, tuple[int, int]] | None:
    """Collective: gives all ranks the main rank's weights. Ranks that drew the same ones, as hosts
    with a seed do, are not sent any: then it returns the sums that have proven it.
    """
    sums = verify.state_sums(model)
    if len(set(group.gather_objects(verify.fingerprint(sums)))) == 1:
        return sums
    host_algo.make_equal(model)
    return None
