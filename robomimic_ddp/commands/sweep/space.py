"""The search space of a sweep: values and ranges of config keys; the names of its trials."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import journal
from robomimic_ddp.config.host.dotlist import parse_dotlist
from robomimic_ddp.errors import ConfigError, UsageError

SEED = "train.seed"
_KEYS_OF_SWEEP = (
    *("train.output_dir", "experiment.name", "ddp.resume", "load_from", "resume"),
    "debug",  # moves the run elsewhere
)
_RANGE = re.compile(r"(log|uniform|int)\(([^,]+),([^,]+)\)")
_VAGUE = ("initial", "enabled", "name", "type")
_LONGEST_NAME = 120

Space = dict[str, Any]
"""Dotted key -> Optuna's distribution. Listed values are choices in JSON: Optuna takes no lists."""


def parse(words: Sequence[str]) -> Space:
    """Read `["train.seed=1,2", "algo.x=log(1e-5,1e-3)"]` as a space. Raises UsageError."""
    space: Space = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and key) or word.startswith("-"):
            raise UsageError(f"found {word!r}, expected KEY=VALUE,VALUE,... such as {SEED}=1,2,3.")
        if key in _KEYS_OF_SWEEP:
            raise UsageError(f"{word}: the sweep sets {key} itself, for each trial.")
        if key in space:
            raise UsageError(f"{key} is given twice. Give all of its values at once: {key}=A,B,C.")
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
            f"{word}: expected two finite numbers, the smaller first: above 0 for log, whole for "
            "int."
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
        raise UsageError(f"{word}: {repeated[0]} is listed twice; each value is trained once.")
    return journal.load_optuna().distributions.CategoricalDistribution(texts)


def decoded(value: Any) -> Any:
    """Return the value that stands in Optuna's journal as `value`."""
    return files.parse_json(value) if isinstance(value, str) else value


def is_range(distribution: Any) -> bool:
    return not hasattr(distribution, "choices")


def grid(space: Space) -> list[dict[str, Any]]:
    """Return every combination of values, as for the journal; the last key changes fastest."""
    choices = (distribution.choices for distribution in space.values())
    return [dict(zip(space, values)) for values in itertools.product(*choices)]


def samples(space: Space) -> Iterator[dict[str, Any]]:
    """Yield settings in which each value, and each end of a range, appears."""
    columns = [
        [of.low, of.high] if is_range(of) else [*map(decoded, of.choices)] for of in space.values()
    ]
    for number in range(max(map(len, columns))):
        yield {key: values[min(number, len(values) - 1)] for key, values in zip(space, columns)}


def dot_list(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings as words of a command line."""
    # YAML reads the two halves of JSON's escapes, beyond 16 bits, as two characters.
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def trial_name(number: int, values: Mapping[str, Any]) -> str:
    """Return the name of a trial's folder: its number and its values, in letters that are safe in
    a file name. A key is shortened to its last word, or the word before a vague last one, where
    these differ.
    """
    words = [key.split(".") for key in values]
    short = [key[-2] if key[-1] in _VAGUE and key[1:] else key[-1] for key in words]
    keys = short if len({*short}) == len(short) else values
    text = "-".join(f"{key}_{_shown(value)}" for key, value in zip(keys, values.values()))
    slug = re.sub(r"[^a-zA-Z0-9_.+-]+", "_", text).strip("_")[:_LONGEST_NAME]
    return f"{number:03d}-{slug or 'trial'}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
