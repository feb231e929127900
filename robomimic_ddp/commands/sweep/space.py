"""What a sweep tries: the values and ranges of config keys, and the names of its trials."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import journal
from robomimic_ddp.config.dotlist import parse_dotlist
from robomimic_ddp.errors import ConfigError, UsageError

SEED = "train.seed"
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
        space[key] = _range(word, *match.groups()) if match else _choices(word, text)
    return space


def _range(word: str, kind: str, *ends: str) -> Any:
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


def _choices(word: str, text: str) -> Any:
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


def is_range(distribution: Any) -> bool:
    return not hasattr(distribution, "choices")


def grid(space: Space) -> list[dict[str, Any]]:
    """Return every combination of values, as Optuna keeps them; the last key changes fastest."""
    choices = (distribution.choices for distribution in space.values())
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]


def samples(space: Space) -> Iterator[dict[str, Any]]:
    """Yield settings in which each value, and each end of a range, is there once."""
    values = {
        key: [of.low, of.high] if is_range(of) else [*map(decoded, of.choices)]
        for key, of in space.items()
    }
    for number in range(max(map(len, values.values()))):
        yield {key: of_key[min(number, len(of_key) - 1)] for key, of_key in values.items()}


def dot_list(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of a command line."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


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
