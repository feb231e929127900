"""`robomimic-ddp sweep new`: checks what the trials would train, and writes the folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import journal, space
from robomimic_ddp.commands.sweep.study import CONFIG, JOURNAL, NAME
from robomimic_ddp.config import json_config, paths
from robomimic_ddp.errors import UsageError


def make(
    directory: Path,
    file: Path,
    searched: space.Space,
    sampler: str = "grid",
    trials: int | None = None,
    metric: str | None = None,
) -> int:
    """Make a sweep over `searched` in `directory`, and return its number of trials.

    Raises UsageError, ConfigError and OptionError, with nothing written, for what could not be
    trained.
    """
    names = [name for name in (JOURNAL, "trials", CONFIG) if os.path.lexists(directory / name)]
    if names:
        raise UsageError(
            f"{directory} has {names[0]} already, of another sweep. Train that one with "
            "robomimic-ddp sweep run, or name another folder."
        )
    _require_meant(searched, sampler, trials)
    content = json_config.read_json(file, "--config ")
    configs = [space.checked(paths.expanded(file), values) for values in space.samples(searched)]
    fixed = list(space.grid(searched)) if sampler == "grid" else [{}] * (trials or 0)
    metric = space.choose_metric(metric, configs)
    definition = {"space": searched, "sampler": sampler, "metric": metric}
    _write(directory, content, definition, fixed)
    return len(fixed)


def _require_meant(searched: space.Space, sampler: str, trials: int | None) -> None:
    if not searched:
        raise UsageError(f"no values to try: give KEY=VALUE,VALUE,... such as {space.SEED}=1,2,3.")
    ranges = [key for key, distribution in searched.items() if not space.choices(distribution)]
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


def _write(
    folder: Path,
    config: Mapping[str, Any],
    definition: Mapping[str, Any],
    trials: Sequence[dict[str, Any]],
) -> None:
    """Write the folder. The journal comes last and complete: a folder without one is not a sweep.
    trials: what is fixed of each one; the sampler draws the rest.
    """
    optuna = journal.load_optuna()
    for name in ("logs", "trials"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with files.opened_to_write(folder / CONFIG, "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    to_json = optuna.distributions.distribution_to_json
    texts = {key: to_json(distribution) for key, distribution in definition["space"].items()}
    temporary = tempfile.mkdtemp(dir=folder)
    try:
        file = Path(temporary, JOURNAL)
        study = optuna.create_study(
            study_name=NAME,
            storage=journal.storage(file),
            direction=space.METRICS[definition["metric"]],
        )
        study.set_user_attr("definition", {**definition, "space": texts})
        for values in trials:
            study.enqueue_trial(values)
        os.rename(file, folder / JOURNAL)
    finally:
        shutil.rmtree(temporary)
