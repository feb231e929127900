"""What a sweep tries: values and ranges of the config's keys, names of trials, and the metric."""

from __future__ import annotations

import difflib
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
_OF_THE_SWEEP = ("train.output_dir", "experiment.name", "ddp.resume", "load_from", "resume")
_RANGE = re.compile(r"(log|uniform|int)\(([^,]+),([^,]+)\)")
_VAGUE = ("initial", "enabled", "name", "type")
_LONGEST_NAME = 120

Space = dict[str, Any]
"""Dotted key -> its values as a list, or {"kind": "log" | "uniform" | "int", "low", "high"}."""


def parse(words: Sequence[str]) -> Space:
    """`["train.seed=1,2", "algo.x=log(1e-5,1e-3)"]` as a space. Raises UsageError."""
    space: Space = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and key) or word.startswith("-"):
            raise UsageError(f"found {word!r}, expected KEY=VALUE,VALUE,... such as {SEED}=1,2,3.")
        if key in _OF_THE_SWEEP:
            raise UsageError(f"{word}: the sweep sets {key} itself, for each trial.")
        if key in space:
            raise UsageError(f"{key} is given twice. Give all of its values once: {key}=A,B,C.")
        space[key] = _range(word, text) or _values(word, text)
    return space


def _range(word: str, text: str) -> dict[str, Any] | None:
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None:
        return None
    try:
        low, high = (int(end) if found[1] == "int" else float(end) for end in found.groups()[1:])
    except ValueError:
        raise UsageError(f"{word}: expected two numbers, such as log(1e-5,1e-3).") from None
    if not low < high or (found[1] == "log" and low <= 0):
        raise UsageError(f"{word}: expected the smaller number first, for log above 0.")
    return {"kind": found[1], "low": low, "high": high}


def _values(word: str, text: str) -> list:
    try:
        values = parse_dotlist([f"values=[{text}]"])["values"]
    except ConfigError as error:
        raise UsageError(f"{word}: its values cannot be read: {error}") from error
    if not values or text.rstrip().endswith(",") or None in values and "null" not in text:
        raise UsageError(f"{word}: an empty value. Expected KEY=VALUE,VALUE,...")
    texts = [json.dumps(value) for value in values]
    twice = [one for one in texts if texts.count(one) > 1]
    if twice:
        raise UsageError(f"{word}: {twice[0]} is there twice; each value is trained once.")
    return values


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination of values; the last key changes fastest."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values))


def samples(space: Space) -> Iterator[dict[str, Any]]:
    """Settings in which each value, and each end of a range, is there once."""
    each = {
        key: one if isinstance(one, list) else [one["low"], one["high"]]
        for key, one in space.items()
    }
    for number in range(max(map(len, each.values()))):
        yield {key: one[min(number, len(one) - 1)] for key, one in each.items()}


def words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a dot-list."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def checked(file: Path, settings: Mapping[str, Any]) -> Any:
    """The host's config for a trial. Raises ConfigError or OptionError for what would stop it."""
    try:
        config, _ = host_config.build_config([f"load_from={file}", *words(settings)])
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


def metric_of(asked: str | None, configs: Sequence[Any]) -> str:
    """The metric to compare trials by: `asked`, or the first that the runs of all configs have.
    Raises UsageError for an unknown one, and for one that some of these runs would not have.
    """
    each = [dict(tree.named(config)) for config in configs]
    switches = {name: _SWITCHES.get(name.partition("/")[0], "") for name in METRICS}
    has = [name for name in METRICS if all(one.get(switches[name], True) for one in each)]
    if asked is None:
        return has[0]
    if asked not in METRICS:
        close = difflib.get_close_matches(asked, METRICS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UsageError(f"--metric {asked}: expected one of {', '.join(METRICS)}.{hint}")
    if asked not in has:
        switch = switches[asked]
        which = "some" if any(one.get(switch, True) for one in each) else "all"
        raise UsageError(
            f"--metric {asked}: {switch} is false for {which} trials, which would not have it. Set "
            f"{switch}=true, or compare by {', '.join(has)}."
        )
    return asked


def labels(keys: Sequence[str]) -> dict[str, str]:
    """Short names of dotted keys: the last part, or the one before where that says too little."""
    parts = {key: ["", *key.split(".")] for key in keys}
    short = {key: one[-2] if one[-1] in _VAGUE else one[-1] for key, one in parts.items()}
    names = list(short.values())
    return {key: name if names.count(name) == 1 else key for key, name in short.items()}


def trial_name(index: int, values: Mapping[str, Any], name: str = "") -> str:
    """The folder of a trial: its number, and its values or `name`."""
    short = labels(list(values))
    name = name or "-".join(f"{short[key]}_{shown(value)}" for key, value in values.items())
    slug = re.sub(r"[^\w.+-]+", "_", name).strip("_")[:_LONGEST_NAME]
    return f"{index:03d}-{slug or 'trial'}"


def shown(value: Any) -> str:
    """A value for a table or a name."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
