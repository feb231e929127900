"""`robomimic-ddp sweep new`: checks what the trials would train, and writes the folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.sweep import METRICS, journal, kind, space
from robomimic_ddp.commands.sweep.study import CONFIG, JOURNAL, NAME, Sweep, digest
from robomimic_ddp.config import tree
from robomimic_ddp.config.host import host_config, json_config
from robomimic_ddp.config.planning.plan import batch_per_rank
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.errors import UsageError


def make(
    directory: Path,
    file: Path,
    searched: space.Space,
    sampler: str = "grid",
    trials: int | None = None,
    metric: str | None = None,
) -> Sweep:
    """Make a sweep over the space `searched` in `directory`. Raises UsageError, ConfigError and
    OptionError, with nothing written, for trials that could not be trained.
    """
    names = [name for name in (JOURNAL, CONFIG) if os.path.lexists(directory / name)]
    names += ["trials"] if any(directory.glob("trials/*")) else []
    if names:
        train = "Train that sweep with robomimic-ddp sweep run"
        remedy = train if JOURNAL in names else "Remove it"
        raise UsageError(f"{directory} already has {names[0]}. {remedy}, or name another folder.")
    _require_consistent(searched, sampler, trials)
    config = json.dumps(json_config.read_json(file, "--config "), indent=2).encode() + b"\n"
    metric = _metric(metric, [checked(file, values) for values in space.samples(searched)])

    optuna = journal.load_optuna()
    directory.mkdir(parents=True, exist_ok=True)
    to_json = optuna.distributions.distribution_to_json
    texts = {key: to_json(distribution) for key, distribution in searched.items()}
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        storage, (direction, _) = journal.storage(Path(temporary, JOURNAL)), METRICS[kind(metric)]
        study = optuna.create_study(study_name=NAME, storage=storage, direction=direction)
        definition = {"space": texts, "sampler": sampler, "metric": metric}
        study.set_user_attr("definition", {**definition, "config_digest": digest(config)})
        for values in space.grid(searched) if sampler == "grid" else [{}] * (trials or 0):
            study.enqueue_trial(values)
        for name in ("logs", "trials"):
            (directory / name).mkdir(exist_ok=True)
        with atomic_open(Path(temporary, CONFIG), "wb") as opened:
            opened.write(config)
        # The journal last: a folder without one is not a sweep, and `sweep new` makes it again.
        for name in (CONFIG, JOURNAL):
            os.rename(Path(temporary, name), directory / name)
    return Sweep(directory)


def _require_consistent(searched: space.Space, sampler: str, trials: int | None) -> None:
    """Raise UsageError if the sampler, its trials and the space do not go together."""
    if not searched:
        raise UsageError(f"no values to try: give KEY=VALUE,VALUE,... such as {space.SEED}=1,2,3.")
    ranges = [key for key, distribution in searched.items() if space.is_range(distribution)]
    if sampler == "grid" and (ranges or trials is not None):
        what = f"{ranges[0]} is a range" if ranges else "--trials is given"
        raise UsageError(
            f"--sampler grid, but {what}: a grid tries each combination of listed values. Use "
            "--sampler random or tpe with --trials N, or list values."
        )
    if sampler != "grid" and trials is None:
        raise UsageError(f"--sampler {sampler}: give the number of trials, --trials N.")
    seeds = searched.get(space.SEED)
    if sampler == "tpe" and seeds is not None and not seeds.single():
        raise UsageError(
            f"--sampler tpe with several values of {space.SEED} would search for the luckiest "
            "seed. Search with one seed, then train the best values in a grid over seeds."
        )


def checked(file: Path, settings: Mapping[str, Any], ranks: int = 1) -> Any:
    """Return the host's config of a trial. Raises ConfigError, OptionError, PlanError or UsageError
    if it could not be trained on that many ranks.
    """
    config, resolved = host_config.config_of_job(file, space.dot_list(settings))
    batch_per_rank(resolved.values, config.train.batch_size, ranks)
    if resolved.values.rollouts == "evaluate":
        raise UsageError(
            "ddp.rollouts=evaluate: a sweep compares what trainings log, and these would log no "
            "episodes. Leave the option out, and evaluate the best trials later."
        )
    return config


def _metric(requested: str | None, configs: Sequence[Any]) -> str:
    """Return the metric to compare trials by: `requested`, or the first of METRICS that every
    config logs. Raises UsageError if some config would not log it.
    """
    keys = [dict(tree.named(config)) for config in configs]
    shared = [
        name
        for name, (_, switch) in METRICS.items()
        if all(config.get(switch, True) for config in keys)
    ]
    if requested is not None and kind(requested) not in shared:
        switch = METRICS[kind(requested)][1]
        raise UsageError(
            f"--metric {requested}: {switch} is false, and such a trial would not log it. Set "
            f"{switch}=true, or compare by {', '.join(shared)}."
        )
    return requested or shared[0]
