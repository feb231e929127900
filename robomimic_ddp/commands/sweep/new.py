"""`robomimic-ddp sweep new`: checks what the trials would train, and writes the folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.sweep import journal, space
from robomimic_ddp.commands.sweep.study import CONFIG, JOURNAL, NAME, writable
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
    journal.load_optuna()
    _require_free(directory)
    if not searched:
        raise UsageError(f"no values to try: give KEY=VALUE,VALUE,... such as {space.SEED}=1,2,3.")
    ranges = [key for key, choices in searched.items() if not isinstance(choices, list)]
    if sampler == "grid" and (ranges or trials is not None):
        what = f"{ranges[0]} is a range" if ranges else "--trials is given"
        raise UsageError(
            f"--sampler grid, but {what}: a grid tries each combination of listed values. Use "
            "--sampler random or tpe with --trials N, or list values."
        )
    if sampler != "grid" and trials is None:
        raise UsageError(f"--sampler {sampler}: give the number of trials, --trials N.")
    if sampler == "tpe" and len(searched.get(space.SEED, [1])) > 1:
        raise UsageError(
            f"--sampler tpe with several values of {space.SEED} would search for the luckiest "
            "seed. Search with one seed, then train the best values in a grid over seeds."
        )
    content = json_config.read_json(file, "--config ")
    combinations = list(space.grid(searched) if sampler == "grid" else space.samples(searched))
    configs = [space.checked(paths.expanded(file), values) for values in combinations]
    definition = {
        "space": searched,
        "sampler": sampler,
        "metric": space.choose_metric(metric, configs),
    }
    known = combinations if sampler == "grid" else [None] * (trials or 0)
    with writable(directory):
        _write(paths.expanded(directory), definition, known, content)
    return len(known)


def _require_free(directory: Path) -> None:
    folder = paths.expanded(directory)
    names = [name for name in (JOURNAL, "trials", CONFIG) if os.path.lexists(folder / name)]
    if names:
        raise UsageError(
            f"{directory} has {names[0]} already, of another sweep. Train that one with "
            "robomimic-ddp sweep run, or name another folder."
        )
    reason = paths.why_not_writable(folder)
    if reason is not None:
        raise UsageError(f"{directory} cannot be written to: {reason}.")


def _write(
    folder: Path,
    definition: Mapping[str, Any],
    trials: Sequence[dict[str, Any] | None],
    config: Mapping[str, Any],
) -> None:
    """Write the folder. The journal comes last and complete: a folder without one is no sweep."""
    optuna = journal.load_optuna()
    for name in ("logs", "trials"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    temporary = tempfile.mkdtemp(dir=folder)
    try:
        file = Path(temporary, JOURNAL)
        study = optuna.create_study(
            study_name=NAME,
            storage=journal.storage(file),
            direction=space.METRICS[definition["metric"]],
        )
        study.set_user_attr("definition", dict(definition))
        for number, values in enumerate(trials):
            fixed = {key: json.dumps(value) for key, value in (values or {}).items()}
            attributes = (
                {"number": number} if values is None else {"number": number, "values": values}
            )
            study.enqueue_trial(fixed, user_attrs=attributes)
        os.rename(file, folder / JOURNAL)
    finally:
        shutil.rmtree(temporary)
