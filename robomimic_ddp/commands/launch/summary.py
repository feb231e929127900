"""What the launcher prints before it starts: ranks, samples per step, learning rate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robomimic_ddp.commands.launch import devices, torchrun
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import options, tree
from robomimic_ddp.config.dotlist import parse_dotlist
from robomimic_ddp.config.env import LaunchEnv, option_texts
from robomimic_ddp.config.plan import RunPlan, make_plan
from robomimic_ddp.errors import ConfigError

_UNKNOWN_CORES = 2**20
"""Avoids notes on cores, since another machine may train."""
_UNKNOWN_BATCH = "train.batch_size is not in the config: the host's own default"


def merged_config(settings: Settings) -> dict[str, Any]:
    """The config file overridden by the dot-list, as in train_rlds."""
    config = OmegaConf.create(torchrun.config_of(settings))
    if settings.takes_dot_list:
        given = parse_dotlist([word for word in settings.overrides if "=" in word])
        try:
            config = OmegaConf.merge(config, OmegaConf.create(given))
        except (OmegaConfBaseException, ValueError) as error:
            words = " ".join(settings.overrides)
            raise ConfigError(f"{words}: expected key=value ({error}).") from error
    return OmegaConf.to_container(config)


def lines(settings: Settings, variables: Mapping[str, str]) -> Iterator[str]:
    """One line for each decision. Raises the errors of the job's plan."""
    chosen = devices.choose(settings.gpus, variables)
    config = merged_config(settings)
    named = variables.get("CUDA_VISIBLE_DEVICES")
    why = f" (CUDA_VISIBLE_DEVICES={named})" if named else ""
    where = "on GPUs" if chosen.gpus else f"on the CPU, since no GPU is visible{why}"
    if settings.gpus is None and not chosen.gpus:
        where += "; --gpus N starts N ranks"
    world = chosen.ranks * settings.nodes
    yield f"ranks: {chosen.ranks} on each of {settings.nodes} node(s) = {world}, {where}"
    batch = tree.at(config, "train.batch_size")
    plan = _plan(settings, variables, world, chosen.ranks, batch)
    micro = f" x {plan.accumulate} micro-batches" if plan.accumulate > 1 else ""
    if batch is None:
        factor = plan.lr_choices["linear"]
        yield f"samples per step: {_UNKNOWN_BATCH}, x {factor:g} ({world} rank(s){micro})"
    else:
        yield (
            f"samples per step: {plan.batch_per_rank} per rank x {world} rank(s){micro} = "
            f"{plan.samples_per_step} (train.batch_size={batch})"
        )
    yield from plan.notes
    yield from _learning_rates(plan, config)
    if _resumes(settings, variables):
        yield (
            "learning rate: a resumed run keeps the one that it was saved with; the above is what "
            "this config and these ranks give a new run"
        )


def _plan(
    settings: Settings,
    variables: Mapping[str, str],
    world: int,
    ranks: int,
    batch: Any,
) -> RunPlan:
    """The job's plan; without a batch size, with one that the ranks can share."""
    resolved = _options(settings, variables)
    launch = LaunchEnv(True, 0, world, 0, ranks)
    names = [word.partition("=")[0] for word in settings.overrides if settings.takes_dot_list]
    rate_given = any(name.endswith("learning_rate.initial") for name in names)
    return make_plan(
        launch,
        resolved,
        visible_gpus=0,  # another machine may train
        use_cuda=False,
        batch_size=world * resolved.values.accumulate if batch is None else batch,
        lr_on_command_line=rate_given,
        cores=_UNKNOWN_CORES,
    )


def _options(settings: Settings, variables: Mapping[str, str]) -> options.ResolvedOptions:
    """The options of the job."""
    texts = option_texts({**variables, **torchrun.option_layers(settings, variables)})
    words = [word for word in settings.overrides if word.startswith("ddp.") and "=" in word]
    given = parse_dotlist(words).get("ddp", {})
    return options.resolve(given, texts, torchrun.config_of(settings).get("ddp") or {})


def _resumes(settings: Settings, variables: Mapping[str, str]) -> bool:
    """Whether the job resumes a run: by our option, or by the entry's."""
    word = "resume=true" if settings.takes_dot_list else "--resume"
    asked = word in [given.lower() for given in settings.overrides]
    return asked or _options(settings, variables).values.resume != "false"


def _learning_rates(plan: RunPlan, config: Mapping[str, Any]) -> Iterator[str]:
    choices, found = plan.lr_choices, False
    for name, entry in (tree.at(config, "algo.optim_params") or {}).items():
        rate = tree.at(entry, "learning_rate.initial") if isinstance(entry, Mapping) else None
        if not isinstance(rate, (int, float)):
            continue
        found = True
        others = ", ".join(f"{rule} {rate * by:g}" for rule, by in choices.items())
        if plan.lr_scaling == "auto":
            yield f"learning rate ({name}): {rate:g}, by the size of the policy one of: {others}"
            continue
        after = rate * choices[plan.lr_scaling]
        yield (
            f"learning rate ({name}): {rate:g} -> {after:g} ({plan.lr_scaling} scaling; the "
            f"choices of --lr-scaling: {others})"
        )
    if not found:
        others = ", ".join(f"{rule} x {by:g}" for rule, by in choices.items())
        times = "by the size of the policy" if plan.lr_scaling == "auto" else plan.lr_scaling
        yield (
            f"learning rate: not in the config: the host's own, {times} scaling; the choices of "
            f"--lr-scaling: {others}"
        )


def runs_folder(settings: Settings) -> Path:
    """The folder of the runs of the experiment name. Raises ConfigError if the config has none."""
    config = merged_config(settings)
    output, name = tree.at(config, "train.output_dir"), tree.at(config, "experiment.name")
    if not output or not name:
        raise ConfigError(
            f"--config {settings.config}: found no train.output_dir and experiment.name, which "
            "name the folder of the runs."
        )
    folder = Path(os.path.expanduser(output))
    if not folder.is_absolute():
        raise ConfigError(
            f"--config {settings.config}: train.output_dir={output} is relative to the host's "
            "package; give an absolute one."
        )
    return folder / name
