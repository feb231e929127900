"""What a sweep tries: the values and ranges of config keys, the names of its trials, its metric."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import journal
from robomimic_ddp.config import host_config, host_keys, options, tree
from robomimic_ddp.config.dotlist import parse_dotlist
from robomimic_ddp.config.entry_options import notes_of
from robomimic_ddp.config.plan import batch_per_rank
from robomimic_ddp.errors import ConfigError, UsageError

SEED = "train.seed"
METRICS = {
    "rollout/Success_Rate": "maximize",
    "rollout/Return": "maximize",
    "valid/Loss": "minimize",
    "train/Loss": "minimize",
}
_SWITCHES = {"rollout": "experiment.rollout.enabled", "valid": "experiment.validate"}
_OWN_KEYS = ("train.output_dir", "experiment.name", "ddp.resume", "load_from", "resume")
_RANGE = re.compile(r"(log|uniform|int)\(([^,]+),([^,]+)\)")
_VAGUE = ("initial", "enabled", "name", "type")
_LONGEST_NAME = 120

Space = dict[str, Any]
"""Dotted key -> Optuna's distribution. Listed values are choices in JSON: Optuna has no lists."""


def parse(words: Sequence[str]) -> Space:
    """Read `["train.seed=1,2", "algo.x=log(1e-5,1e-3)"]` as a space. Raises UsageError."""
    space: Space = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and key) or word.startswith("-"):
            raise UsageError(f"found {word!r}, expected KEY=VALUE,VALUE,... such as {SEED}=1,2,3.")
        if key in _OWN_KEYS:
            raise UsageError(f"{word}: the sweep sets {key} itself, for each trial.")
        if key in space:
            raise UsageError(f"{key} is given twice. Give all of its values once: {key}=A,B,C.")
        match = _RANGE.fullmatch(text.replace(" ", ""))
        space[key] = (
            _parse_values(word, text) if match is None else _parse_range(word, *match.groups())
        )
    return space


def _parse_range(word: str, kind: str, *ends: str) -> Any:
    distributions = journal.load_optuna().distributions
    try:
        if kind == "int":
            return distributions.IntDistribution(*map(int, ends))
        low, high = map(float, ends)
        if not math.isfinite(high - low):
            raise ValueError
        return distributions.FloatDistribution(low, high, log=kind == "log")
    except ValueError:
        raise UsageError(
            f"{word}: expected two finite numbers, the smaller one first, for log above 0, for int "
            "whole ones."
        ) from None


def _parse_values(word: str, text: str) -> Any:
    try:
        values = parse_dotlist([f"values=[{text}]"])["values"]
    except ConfigError as error:
        raise UsageError(f"{word}: its values cannot be read: {error}") from error
    if not values or text.rstrip().endswith(",") or None in values and "null" not in text:
        raise UsageError(f"{word}: an empty value. Expected KEY=VALUE,VALUE,...")
    texts = [json.dumps(value) for value in values]
    repeated = [text for text in texts if texts.count(text) > 1]
    if repeated:
        raise UsageError(f"{word}: {repeated[0]} is there twice; each value is trained once.")
    return journal.load_optuna().distributions.CategoricalDistribution(texts)


def decoded(value: Any) -> Any:
    """Return the value of a key for what Optuna keeps of it."""
    return files.parse_json(value) if isinstance(value, str) else value


def choices(distribution: Any) -> list:
    """Return the values of a key as Optuna keeps them, or [] for a range."""
    return list(getattr(distribution, "choices", ()))


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of values, as Optuna keeps them; the last key changes fastest."""
    for values in itertools.product(*map(choices, space.values())):
        yield dict(zip(space, values, strict=True))


def samples(space: Space) -> Iterator[dict[str, Any]]:
    """Yield settings in which each value, and each end of a range, is there once."""
    values = {
        key: [decoded(value) for value in choices(distribution)]
        or [distribution.low, distribution.high]
        for key, distribution in space.items()
    }
    for number in range(max(map(len, values.values()))):
        yield {key: of_key[min(number, len(of_key) - 1)] for key, of_key in values.items()}


def dot_list(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of a command line."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def checked(file: Path, settings: Mapping[str, Any]) -> Any:
    """Return the host's config for a trial. Raises ConfigError or OptionError for what would stop
    its training.
    """
    try:
        config = host_config.build_config([f"load_from={file}", *dot_list(settings)])
    except ImportError as error:
        raise ConfigError(
            f"the keys of the sweep cannot be compared with the host's config: {error}. Use the "
            "Python that trains."
        ) from error
    notes = notes_of(config)
    resolved = options.resolve(notes.command_line_options, {}, notes.file_options)
    host_keys.require_possible(config)
    batch_per_rank(resolved.values, config.train.batch_size, 1)
    return config


def choose_metric(requested: str | None, configs: Sequence[Any]) -> str:
    """Return the metric to compare trials by: `requested`, or the first of METRICS that the runs of
    all configs have. Raises UsageError for one that some of these runs would not have.
    """
    settings = [dict(tree.named(config)) for config in configs]
    switches = {name: _SWITCHES.get(name.partition("/")[0], "") for name in METRICS}
    shared = [name for name in METRICS if all(keys.get(switches[name], True) for keys in settings)]
    if requested is not None and requested not in shared:
        switch = switches[requested]
        raise UsageError(
            f"--metric {requested}: {switch} is false, and such a trial would not have it. Set "
            f"{switch}=true, or compare by {', '.join(shared)}."
        )
    return requested or shared[0]


def trial_name(number: int, values: Mapping[str, Any]) -> str:
    """Return the name of a trial's folder: its number and its values, in letters that are safe in
    a file name. A key is written as its last part, or the one before where that says too little;
    the complete key where two would be the same.
    """
    parts = {key: ["", *key.split(".")] for key in values}
    short = {key: words[-2] if words[-1] in _VAGUE else words[-1] for key, words in parts.items()}
    names = list(short.values())
    text = "-".join(
        f"{short[key] if names.count(short[key]) == 1 else key}_{_shown(value)}"
        for key, value in values.items()
    )
    slug = re.sub(r"[^a-zA-Z0-9_.+-]+", "_", text).strip("_")[:_LONGEST_NAME]
    return f"{number:03d}-{slug or 'trial'}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
