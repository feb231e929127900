"""What a sweep tries: values and ranges of the config's keys, names of trials, and the metric."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
"""Dotted key -> its values as a list, or {"kind": "log" | "uniform" | "int", "low", "high"}."""


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
        space[key] = _parse_range(word, text) or _parse_values(word, text)
    return space


def _parse_range(word: str, text: str) -> dict[str, Any] | None:
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    try:
        low, high = (int(end) if match[1] == "int" else float(end) for end in match.groups()[1:])
    except ValueError:
        raise UsageError(f"{word}: expected two numbers, such as log(1e-5,1e-3).") from None
    if not low < high or (match[1] == "log" and low <= 0) or abs(high - low) == float("inf"):
        raise UsageError(
            f"{word}: expected two finite numbers, the smaller one first, for log above 0."
        )
    return {"kind": match[1], "low": low, "high": high}


def _parse_values(word: str, text: str) -> list:
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
    return values


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of values; the last key changes fastest."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values))


def samples(space: Space) -> Iterator[dict[str, Any]]:
    """Yield settings in which each value, and each end of a range, is there once."""
    choices = {
        key: values if isinstance(values, list) else [values["low"], values["high"]]
        for key, values in space.items()
    }
    for number in range(max(map(len, choices.values()), default=0)):
        yield {key: values[min(number, len(values) - 1)] for key, values in choices.items()}


def dot_list(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of a command line."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def checked(file: Path, settings: Mapping[str, Any]) -> Any:
    """Return the host's config for a trial. Raises ConfigError or OptionError for what would stop
    its training.
    """
    try:
        config, _ = host_config.build_config([f"load_from={file}", *dot_list(settings)])
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


def choose_metric(asked: str | None, configs: Sequence[Any]) -> str:
    """Return the metric to compare trials by: `asked`, one of METRICS, or the first that the runs
    of all configs have. Raises UsageError for one that some of these runs would not have.
    """
    settings = [dict(tree.named(config)) for config in configs]
    switches = {name: _SWITCHES.get(name.partition("/")[0], "") for name in METRICS}
    shared = [name for name in METRICS if all(keys.get(switches[name], True) for keys in settings)]
    if asked is not None and asked not in shared:
        switch = switches[asked]
        which = "some" if any(keys.get(switch, True) for keys in settings) else "all"
        raise UsageError(
            f"--metric {asked}: {switch} is false for {which} trials, which would not have it. Set "
            f"{switch}=true, or compare by {', '.join(shared)}."
        )
    return asked or shared[0]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Map dotted keys to their last part, or to the one before where the last says too little; the
    whole key where two would be the same.
    """
    parts = {key: ["", *key.split(".")] for key in keys}
    short = {key: words[-2] if words[-1] in _VAGUE else words[-1] for key, words in parts.items()}
    names = list(short.values())
    return {key: name if names.count(name) == 1 else key for key, name in short.items()}


def trial_name(number: int, values: Mapping[str, Any]) -> str:
    """Return the name of a trial's folder: its number and its values, in letters that are safe in
    a file name.
    """
    short = short_names(list(values))
    text = "-".join(f"{short[key]}_{shown(value)}" for key, value in values.items())
    slug = re.sub(r"[^a-zA-Z0-9_.+-]+", "_", text).strip("_")[:_LONGEST_NAME]
    return f"{number:03d}-{slug or 'trial'}"


def shown(value: Any) -> str:
    """Return a value as a table or a name has it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
