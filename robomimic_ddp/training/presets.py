"""What a preset changes on a model for the time of its training, and what `max` adds to `fast`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.config.options import Options
from robomimic_ddp.config.planning.settings import PRESET, Settings
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import comm_hooks, optimizer_ddp, parallel
from robomimic_ddp.errors import PlanError
from robomimic_ddp.monitoring import step_hooks
from robomimic_ddp.training.step import (
    activation_checkpointing,
    backprop,
    compile,
    convolutions,
    crops,
    ema,
    fused_optimizers,
    pinned_batches,
    precision,
    sync_batchnorm,
)
from robomimic_ddp.training.step import module_call as calls
from robomimic_ddp.training.step.accumulation import Accumulation
from robomimic_ddp.training.step.backprop import NAME, Backward, host_module

_BF16_CAPABILITY = (8, 0)
"""From here on GPUs compute in bf16 and TF32."""
_TORCHS_BUCKET_MB = 25
_ONLY_WITH_NETS = {
    "static_graph": True,
    "find_unused_parameters": False,
    **dict.fromkeys(parallel.BUFFERS, True),
}
"""Values in `ddp.kwargs` that DDP around an optimizer's parameters, rather than a net, cannot have:
its passes reach different parameters, and there are no buffers.
"""


def with_preset(settings: Settings, any_parallel_net: bool) -> Settings:
    """Collective: return the settings with the options that preset `max` adds where they were left
    open.

    precision: bf16 on CUDA devices that compute in it; compile: on CUDA devices where nothing is
    missing for it, both on every rank and for parallel nets; comm: bf16 between several ranks.
    """
    values, plan = settings.options, settings.plan
    if values.preset != "max":
        return settings
    added = {}
    on_gpu = any_parallel_net and plan.device.startswith("cuda")
    bucket_mb = _bucket_mb(values) if plan.mode == "ddp" else None
    can_compile = on_gpu and plan.mode not in ("dp", "fsdp")
    can_compile = can_compile and compile.why_not(plan.device, bucket_mb) is None
    kinds = group.gather_objects((on_gpu and _computes_in_bf16(plan.device), can_compile))
    in_bf16, compiles = map(all, zip(*kinds))
    if in_bf16:
        added["precision"] = "bf16"
    if compiles:
        added["compile"] = "true"
    if plan.several_ranks and plan.mode != "fsdp" and comm_hooks.sends_bf16(plan.device):
        added["comm"] = "bf16"
    return settings.with_preset(added)


def _bucket_mb(options: Options) -> float:
    return options.kwargs.get("bucket_cap_mb", _TORCHS_BUCKET_MB)


def _computes_in_bf16(device: str | torch.device) -> bool:
    """Return whether the GPU does; torch counts older ones, too, which only emulate it."""
    if torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= _BF16_CAPABILITY


def added_by_max(settings: Settings) -> str | None:
    """Return the plan's line on what preset `max` adds; None for other presets."""
    if settings.options.preset != "max":
        return None
    names = [name for name in ("precision", "compile", "comm") if settings.sources[name] == PRESET]
    added = ", ".join(f"{name}={getattr(settings.options, name)}" for name in names)
    return f"preset max adds: {added or 'nothing (docs/options.md says what needs what)'}"


class Prepared(NamedTuple):
    """`line`: of the printed plan. `scaler`: torch's GradScaler under fp16, else None; its state
    belongs to the run's.
    """

    line: str
    scaler: Any = None


def prepare(model: Any, options: Options, nets: list, undo: ExitStack) -> Prepared:
    """Changes how `model` takes its steps, until `undo` is closed.

    `nets`: those that went through `api.parallel`; where none did, all of the algorithm's. Raises
    PlanError where micro-batches or a precision are asked for and cannot be.
    """
    module = host_module(model)
    host = getattr(module, NAME, None)
    _require_possible(model, options, nets, host)
    normalised = sync_batchnorm.install(model, options.sync_batchnorm, nets, undo)
    nets = nets or [net for _, net in host_algo.named_roots(model)]
    line, update, scaler = "preset: safe, the host's own arithmetic", None, None
    if options.preset != "safe":
        done = {"averages in one pass": ema.update_in_one_pass(model, undo)}
        done["fused optimizer"] = fused_optimizers.install(model, undo)
        done["short convolutions as products"] = convolutions.install(nets, undo)
        done["gradient norm read once"] = backprop.stands_for(host)
        if torch.device(_device(nets)).type == "cuda":
            done["crops drawn without waiting"] = crops.install(model, undo)
            done["batches copied from pinned memory"] = pinned_batches.install(model, undo)
        update = backprop.update if done["gradient norm read once"] else None
        changes = ", ".join(name for name in done if done[name])
        line = f"preset: {options.preset} ({changes or 'nothing that is known here to change'})"
    line += _tf32(options, nets, undo)
    if options.precision != "fp32":
        precision.install(nets, options.precision, undo)
        scaler = precision.make_scaler(options.precision, _device(nets))
        if scaler is not None:
            update = partial(backprop.update, scaler=scaler)
    if update is not None and torch.device(_device(nets)).type != "cpu":
        undo.enter_context(step_hooks.installed(model, methods={"log_info": backprop.logged}))
    line += _on_forward(options, nets, undo)
    owned = [optimizer for _, optimizer in host_algo.named_optimizers(model)]
    by_optimizer = group.world_size() > 1 and any(
        optimizer_ddp.outside_parallel_nets(model, optimizer) for optimizer in owned
    )
    if host is not None and (update is not None or options.accumulate > 1 or by_optimizer):
        backward = Backward(host, owned, update, scaler)
        undo.enter_context(swapped(module, NAME, backward))
        _refuse_other_steps(model, options, nets, backward, undo)
        if options.accumulate > 1:
            Accumulation(model, options.accumulate, backward).install(undo)
    return Prepared(line + normalised, scaler)


def _refuse_other_steps(
    model: Any, options: Options, nets: list, backward: Backward, undo: ExitStack
) -> None:
    """Refuse steps of the algorithm's optimizers outside of `backward` where it must see them."""
    scaled = {id(p) for net in nets for p in net.parameters()} if backward.scaler else set()
    for name, optimizer in host_algo.named_optimizers(model):
        faults = []
        if options.accumulate > 1:
            faults.append(("it would take a step for each micro-batch", "ddp.accumulate=1", True))
        if not scaled.isdisjoint(map(id, host_algo.held_by(optimizer))):
            faults.append(
                ("gradients too small for fp16 would be zero", "ddp.precision=bf16", False)
            )
        for fault in faults:
            hook = partial(backward.before_step, model, name, *fault)
            undo.callback(optimizer.register_step_pre_hook(hook).remove)


def _tf32(options: Options, nets: list, undo: ExitStack) -> str:
    """Have preset `max` compute products in TF32; what the plan's line says of it."""
    device = torch.device(_device(nets))
    if device.type != "cuda" or torch.version.hip or not _computes_in_bf16(device):
        return ""
    if options.preset == "max":
        precision.products_in_tf32(undo)
    source = "" if options.preset == "max" else ", as the host has it"
    benchmark = "measured, may differ between runs" if torch.backends.cudnn.benchmark else "fixed"
    return f"; TF32: {precision.tf32()}{source}; algorithms of convolutions: {benchmark}"


def _on_forward(options: Options, nets: list, undo: ExitStack) -> str:
    """Compiles and checkpoints as the options say; what the plan's line says of it."""
    notes, checkpointed = [], []
    none = "none, since no net here has image layers"
    if options.activation_checkpointing:
        checkpointed = activation_checkpointing.install(nets, undo)
        encoders = f"{len(checkpointed)} net(s) with image encoders"
        notes.append(f"activation checkpointing: {encoders if checkpointed else none}")
    if options.compile != "false":
        count = compile.install(nets, options.compile, checkpointed, undo)
        but = ", not those that are checkpointed" if checkpointed else ""
        notes.append(f"compiled ({options.compile}): training forward of {count} net(s){but}")
    return "".join(f"; {note}" for note in notes)


def _device(nets: list) -> Any:
    """Return the device of the first parameter; the CPU where there is none."""
    devices = (parameter.device for net in nets for parameter in net.parameters())
    return next(devices, torch.device("cpu"))


def _require_possible(model: Any, options: Options, nets: list, host: Any) -> None:
    optimizers = [optimizer for optimizer, _ in host_algo.named_optimizers(model)]
    for name, reason in _refusals(options, nets, host, optimizers):
        raise PlanError(
            f"{name} is not possible with {type(model).__name__}: {reason}. Leave the option at "
            "its default."
        )


def _refusals(
    options: Options, nets: list, host: Any, optimizers: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the options that the algorithm, this torch, machine or mode cannot have, and why."""
    of_nets = {
        "ddp.mode=fsdp": options.mode == "fsdp",
        f"ddp.precision={options.precision}": options.precision != "fp32",
        f"ddp.compile={options.compile}": options.compile != "false",
        "ddp.activation_checkpointing=true": options.activation_checkpointing,
    }
    for name, value in options.kwargs.items():
        is_of_nets = name in _ONLY_WITH_NETS and value is _ONLY_WITH_NETS[name]
        of_nets[f"ddp.kwargs.{name}={str(value).lower()}"] = is_of_nets
    if not nets:
        why = "it is for nets that are made parallel one by one, as the diffusion policy's are"
        yield from ((name, why) for name, is_asked in of_nets.items() if is_asked)
    accumulate = f"ddp.accumulate={options.accumulate}"
    if options.accumulate > 1 and not nets and len(optimizers) > 1:
        yield (
            accumulate,
            f"it has several optimizers ({', '.join(optimizers)}): a loss may depend on the step "
            "of another, and micro-batches would change their order",
        )
    if options.accumulate > 1 and host is None:
        yield accumulate, f"its host has no utils.torch_utils.{NAME}(net, optim, loss)"
    if options.precision == "fp16" and not backprop.stands_for(host):
        why = f"its host's {NAME} is not robomimic's, so gradients cannot be scaled in it"
        yield f"ddp.precision={options.precision}", why
    modes = [parallel.state_of(net).mode for net in nets if parallel.is_parallel(net)]
    copied = None
    if "dp" in modes:
        copied = "DataParallel makes plain copies of the nets at every step; start it with torchrun"
    device = _device(nets)
    if options.compile != "false":
        why = copied or compile.why_not(str(device), _bucket_mb(options) if modes else None)
        if why is None and options.accumulate > 1:
            why = compile.why_not_in_parts(options.compile, device)
        if why is not None:
            yield f"ddp.compile={options.compile}", why
    if options.activation_checkpointing:
        if copied is not None or not calls.can_be_replaced():
            why = copied or "this torch is too old for it (2.1 has it)"
            yield "ddp.activation_checkpointing=true", why
    if options.precision != "fp32":
        why = precision.why_not(options.precision, device)
        if why is not None:
            yield f"ddp.precision={options.precision}", why
