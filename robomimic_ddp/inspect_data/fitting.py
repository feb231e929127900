"""Which of the package's schemas fits a data set; and a schema made from its features, if none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.inspect_data import survey
from robomimic_ddp.rlds.features import is_number, is_picture, step_features
from robomimic_ddp.rlds.schema import find_part, held_keys
from robomimic_ddp.rlds.schema_file import Schema, load_schema, packaged
from robomimic_ddp.rlds.source import Source

LONGEST_STATE = 64
"""Longer vectors are embeddings and the like, and no state of a robot."""
_NO_ACTION = ("is_", "terminate")


@dataclass
class Fit:
    """The keys of a schema that a data set has, by section; what it lacks, and why."""

    schema: Schema
    found: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether a policy can be trained: all actions it should learn, and something to see."""
        wanted = self.schema.suggested.get("actions", list(self.schema.actions))
        seen = self.found["cameras"] + self.found["states"]
        return bool(wanted) and set(wanted) <= set(self.found["actions"]) and bool(seen)

    def suggested(self, section: str) -> list[str]:
        """The keys of a section that a ready-made config takes."""
        wanted = self.schema.suggested.get(section, self.found[section])
        return [key for key in self.found[section] if key in wanted]

    def described(self) -> dict[str, Any]:
        """For the report."""
        return {"fits": self.fits, "found": self.found, "missing": self.missing}


def fits(source: Source) -> dict[str, Fit]:
    """How each of the package's schemas fits."""
    return {name: fit(source, load_schema(name)) for name in packaged()}


def fit(source: Source, schema: Schema) -> Fit:
    """How one schema fits."""
    where = str(source.folder)
    steps, result = step_features(source.features, where), Fit(schema)
    for section in ("cameras", "states", "actions"):
        entries = getattr(schema, section)
        result.found[section] = []
        for key, entry in entries.items():
            if not held_keys({key: entry}, steps):
                result.missing[key] = f"no {entry.feature}"
            elif section == "cameras":
                (place,) = places({key: entry.feature}, steps).values()
                if is_picture(steps[place]):
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


def places(names: Mapping[str, str], steps: Mapping[str, Any]) -> dict[str, str]:
    """Dotted names as the features' own."""
    dotted = {name.replace("/", "."): name for name in steps}
    return {key: dotted[name.replace("/", ".")] for key, name in names.items()}


def best(found: Mapping[str, Fit]) -> str | None:
    """The name of the schema that fits with the most keys, or None."""
    fitting = {name: fit for name, fit in found.items() if fit.fits}
    return max(fitting, key=lambda name: sum(map(len, fitting[name].found.values())), default=None)


def draft(source: Source) -> str:
    """A schema in YAML, from names and shapes alone. Raises DataError where there is no action."""
    steps = step_features(source.features, str(source.folder))
    vectors = {
        name: feature
        for name, feature in steps.items()
        if is_number(feature) and len(feature.shape) <= 1 and None not in feature.shape
    }
    actions = {
        name: feature
        for name, feature in vectors.items()
        if name.partition("/")[0].startswith("action")
        and not name.rpartition("/")[2].startswith(_NO_ACTION)
    }
    if not actions:
        raise DataError(
            f"{source.folder}: no step feature of numbers is called `action` or is in a group of "
            "that "
            "name. Copy configs/rlds/bridge.yaml, name the action's features there, and give its "
            "path "
            "as train.rlds_schema."
        )
    states = {
        name: feature
        for name, feature in vectors.items()
        if name.startswith("observation/") and math.prod(feature.shape) <= LONGEST_STATE
    }
    return _yaml(source, states, actions)


def _yaml(source: Source, states: dict[str, Any], actions: dict[str, Any]) -> str:
    words = survey.language(source)
    lines = [
        f"# {source.name}, from the names and shapes of its features. Check it: which columns are",
        "# rotations, and in which format? docs/rlds_schemas.md explains every key. For example:",
        "#   action/rotation:",
        "#     feature: action",
        "#     columns: [3, 6]",
        "#     rotation: {from: euler_xyz, to: rot_6d}",
    ]
    for section, features in (
        ("cameras", survey.cameras(source)),
        ("states", states),
        ("actions", actions),
    ):
        lines.append(f"{section}:" if features else f"{section}: {{}}")
        for key, name in _short(dict(sorted(features.items()))).items():
            size = math.prod(features[name].shape)
            entry = name.replace("/", ".")
            if section != "cameras":
                entry = f"{{feature: {entry}, columns: [0, {size}], of: {size}}}"
            lines.append(f"  {key}: {entry}")
    if words:
        lines.append(f"language: {words.replace('/', '.')}")
    lines += [
        "# success: {feature: episode_metadata.file_path, contains: success}",
        "# filters:",
        "#   - {feature: episode_metadata.robot, equals: left}",
    ]
    return "\n".join(lines) + "\n"


def _short(features: Mapping[str, Any]) -> dict[str, str]:
    """Last words of names as keys, or whole names where two end alike."""
    leaves = [name.rpartition("/")[2] for name in features]
    if len(set(leaves)) < len(leaves):
        leaves = list(features)
    return dict(zip(leaves, features))
