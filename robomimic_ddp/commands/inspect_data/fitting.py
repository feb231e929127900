"""Which of the package's schemas fits a dataset; and a schema made from its features, if none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from robomimic_ddp.commands.inspect_data import survey
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.features import is_number, is_picture, step_features
from robomimic_ddp.data.rlds.schema.fields import find_fields, find_part, held_keys
from robomimic_ddp.data.rlds.schema.spec import Schema, load_schema, packaged
from robomimic_ddp.errors import DataError

LONGEST_STATE = 64
"""Longer vectors are no state of a robot but embeddings."""
_NO_ACTION = ("is_", "terminate")


@dataclass
class Fit:
    """The keys of a schema that a dataset has, by section; what it lacks, and why."""

    schema: Schema
    found: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether a policy can be trained: it has all suggested actions and an observation."""
        wanted = self.schema.suggested.get("actions", list(self.schema.actions))
        seen = self.found["cameras"] + self.found["states"]
        return bool(wanted) and set(wanted) <= set(self.found["actions"]) and bool(seen)

    def suggested(self, section: str) -> list[str]:
        """The keys of a section for a generated config."""
        wanted = self.schema.suggested.get(section, self.found[section])
        return [key for key in self.found[section] if key in wanted]

    def described(self) -> dict[str, Any]:
        """Plain values for the report."""
        return {"fits": self.fits, "found": self.found, "missing": self.missing}


def fits(source: Source) -> dict[str, Fit]:
    """How each of the package's schemas fits."""
    return {name: fit(source, load_schema(name)) for name in packaged()}


def fit(source: Source, schema: Schema) -> Fit:
    """How one schema fits."""
    where = str(source.folder)
    steps, result = step_features(source.features, where), Fit(schema)
    dotted = {name.replace("/", "."): feature for name, feature in steps.items()}
    for section in ("cameras", "states", "actions"):
        entries = getattr(schema, section)
        result.found[section] = []
        for key, entry in entries.items():
            if not held_keys({key: entry}, steps):
                result.missing[key] = f"no {entry.feature}"
            elif section == "cameras":
                if is_picture(dotted[entry.feature.replace("/", ".")]):
                    result.found[section].append(key)
                else:
                    result.missing[key] = f"{entry.feature} is no picture of 3 colours"
            else:
                try:
                    find_part(key, entry, steps, where)
                    result.found[section].append(key)
                except DataError as error:
                    result.missing[key] = str(error).partition(": ")[2].partition(" Use another")[0]
    return result


def require_fit(source: Source, schema: Schema) -> dict[str, str]:
    """Optional keys that a dataset lacks, with the reason. Raises DataError for required ones."""
    where, found = str(source.folder), fit(source, schema)
    cameras, states, actions = (found.found[one] for one in ("cameras", "states", "actions"))
    find_fields(source.features, where, cameras + states, cameras, actions, schema)
    return found.missing


def best(found: Mapping[str, Fit]) -> str | None:
    """The name of the schema that fits with the most keys, or None."""
    fitting = {name: fit for name, fit in found.items() if fit.fits}
    return max(fitting, key=lambda name: sum(map(len, fitting[name].found.values())), default=None)


def draft(source: Source) -> str:
    """A schema in YAML, from names and shapes alone; other numeric or text features as comments."""
    steps = step_features(source.features, str(source.folder))
    numbers = {
        name: math.prod(feature.shape)
        for name, feature in sorted(steps.items())
        if is_number(feature) and None not in feature.shape
    }
    vectors = [name for name in numbers if len(steps[name].shape) <= 1]
    cameras = sorted(survey.cameras(source))
    states = [
        name
        for name in vectors
        if name.startswith("observation/") and numbers[name] <= LONGEST_STATE
    ]
    actions = [
        name for name in vectors if name.partition("/")[0].startswith("action") and _acts(name)
    ]
    others = [name for name in numbers if name not in (*states, *actions)]
    lines = [
        f"# {source.name}, from the names and shapes of its features. Check it: which columns are",
        "# rotations, and in which format? docs/rlds_schemas.md explains every key. For example:",
        "#   action/rotation:",
        "#     feature: action",
        "#     columns: [3, 6]",
        "#     rotation: {from: euler_xyz, to: rot_6d}",
        "# Lines with # are features whose use is not known: remove the # of those that you need.",
        "cameras:" if cameras else "cameras: {}",
        *(f"  {_word(key)}: {_dotted(name)}" for key, name in _short(cameras).items()),
        *_entries("states", states, others, numbers),
        *_entries("actions", actions, [] if actions else [*filter(_acts, numbers)], numbers),
    ]
    words = survey.language(source)
    texts = [name for name, f in sorted(steps.items()) if not is_number(f) and not f.shape]
    lines += [f"{'' if name == words else '# '}language: {_dotted(name)}" for name in texts]
    rest = [one for one in sorted(steps) if one not in (*numbers, *cameras, *texts)]
    if rest:
        lines.append("# neither colour pictures, nor text, nor numbers of a fixed shape:")
        lines += [f"#   {_dotted(name)}" for name in rest]
    lines += [
        "# success: {feature: episode_metadata.file_path, contains: success}",
        "# filters:",
        "#   - {feature: episode_metadata.robot, equals: left}",
    ]
    return "\n".join(lines) + "\n"


def _acts(name: str) -> bool:
    return not name.rpartition("/")[2].startswith(_NO_ACTION)


def _entries(
    section: str, names: list[str], others: list[str], numbers: Mapping[str, int]
) -> Iterator[str]:
    """The lines of a section: its entries, and `others` as comments, no key twice."""
    yield f"{section}:" if names or others else f"{section}: {{}}"
    for key, name in _short(names, others).items():
        entry = f"{{feature: {_dotted(name)}, columns: [0, {numbers[name]}], of: {numbers[name]}}}"
        yield f"  {'' if name in names else '# '}{_word(key)}: {entry}"


def _short(names: list[str], others: Sequence[str] = ()) -> dict[str, str]:
    """Keys for names: the last component, or the whole name if that is not unique."""
    leaves = [name.rpartition("/")[2] for name in names]
    if len(set(leaves)) < len(leaves):
        leaves = names
    keys = dict(zip(leaves, names))
    for name in others:
        leaf = name.rpartition("/")[2]
        keys[name if leaf in keys else leaf] = name
    return keys


def _dotted(name: str) -> str:
    return _word(name.replace("/", "."))


def _word(text: str) -> str:
    """Quoted for YAML, if needed."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and yaml.safe_load(text) == text
    return text if plain else json.dumps(text)
