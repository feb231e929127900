"""`robomimic-ddp sweep new`: checks what the trials would train, and writes the folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.sweep import METRICS, journal, space
from robomimic_ddp.commands.sweep.study import CONFIG, JOURNAL, NAME, Sweep
from robomimic_ddp.config import host_config, json_config, tree
from robomimic_ddp.config.plan import batch_per_rank
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
    """Make a sweep over `searched` in `directory`. Raises UsageError, ConfigError and OptionError,
    with nothing written, for what could not be trained.
    """
    names = [name for name in (JOURNAL, "trials", CONFIG) if os.path.lexists(directory / name)]
    if names:
        raise UsageError(
            f"{directory} has {names[0]} already, of another sweep. Train that one with "
            "robomimic-ddp sweep run, or name another folder."
        )
    _require_meant(searched, sampler, trials)
    content = json_config.read_json(file, "--config ")
    configs = [_checked(file, values) for values in space.samples(searched)]
    metric = _metric(metric, configs)

    optuna = journal.load_optuna()
    directory.mkdir(parents=True, exist_ok=True)
    to_json = optuna.distributions.distribution_to_json
    texts = {key: to_json(distribution) for key, distribution in searched.items()}
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        storage, (direction, _) = journal.storage(Path(temporary, JOURNAL)), METRICS[metric]
        study = optuna.create_study(study_name=NAME, storage=storage, direction=direction)
        study.set_user_attr("definition", {"space": texts, "sampler": sampler, "metric": metric})
        for values in space.grid(searched) if sampler == "grid" else [{}] * (trials or 0):
            study.enqueue_trial(values)
        for name in ("logs", "trials"):
            (directory / name).mkdir(exist_ok=True)
        with atomic_open(directory / CONFIG, encoding="utf-8") as opened:
            opened.write(json.dumps(content, indent=2) + "\n")
        # Last and complete: a folder without a journal is not a sweep.
        os.rename(Path(temporary, JOURNAL), directory / JOURNAL)
    return Sweep(directory)


def _require_meant(searched: space.Space, sampler: str, trials: int | None) -> None:
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


def _checked(file: Path, settings: Mapping[str, Any]) -> Any:
    """Return the host's config for a trial. Raises ConfigError or OptionError for what would stop
    its training.
    """
    config, resolved = host_config.config_of_job(file, space.dot_list(settings))
    batch_per_rank(resolved.values, config.train.batch_size, 1)
    return config


def _metric(requested: str | None, configs: Sequence[Any]) -> str:
    """Return the metric to compare trials by: `requested`, or the first of METRICS that the runs of
    all configs have. Raises UsageError for one that some of these runs would not have.
    """
    keys = [dict(tree.named(config)) for config in configs]
    shared = [
        name for name, (_, switch) in METRICS.items() if all(of.get(switch, True) for of in keys)
    ]
    if requested is not None and requested not in shared:
        switch = METRICS[requested][1]
        raise UsageError(
            f"--metric {requested}: {switch} is false, and such a trial would not have it. Set "
            f"{switch}=true, or compare by {', '.join(shared)}."
        )
    return requested or shared[0]
