"""Finds the packaged schema that fits a dataset, and drafts a schema if none does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from robomimic_ddp.commands.inspect_data import survey
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.features import is_number, place_of
from robomimic_ddp.data.rlds.schema.fields import find_image, find_part
from robomimic_ddp.data.rlds.schema.spec import Schema, load_schema, packaged
from robomimic_ddp.errors import DataError

SECTIONS = ("cameras", "states", "actions")
LONGEST_STATE = 64
"""Longer vectors are embeddings, not states of a robot."""
_NO_ACTION, _WIDTH = ("is_", "terminate"), 100
_HEAD = """\
# {name}, from the names and shapes of its features. Check it: which columns are
# rotations, and in which format? docs/rlds_schemas.md explains every key. For example:
#   action/rotation:
#     feature: action
#     columns: [3, 6]
#     rotation: {{from: euler_xyz, to: rot_6d}}
"""


@dataclass
class Fit:
    """The keys of a schema that a dataset has, by section, and the missing keys with the reason."""

    schema: Schema
    available: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether a policy can be trained: with all suggested actions and an observation."""
        actions = self.schema.suggested.get("actions", list(self.schema.actions))
        has_all = bool(actions) and set(actions) <= set(self.available["actions"])
        return has_all and bool(self.available["cameras"] or self.available["states"])

    def suggested(self, section: str) -> list[str]:
        """Return the keys of a section for the drafted config."""
        suggested = self.schema.suggested.get(section, self.available[section])
        return [key for key in self.available[section] if key in suggested]


def best(source: Source) -> Fit | None:
    """Return the fit of the packaged schema that fits with the most keys, if any fits."""
    fits = [fit for name in packaged() if (fit := fit_of(source, load_schema(name))).fits]
    return max(fits, key=lambda fit: sum(map(len, fit.available.values())), default=None)


def fit_of(source: Source, schema: Schema) -> Fit:
    """Return how a schema fits."""
    steps, result = source.steps, Fit(schema)
    for section in SECTIONS:
        find = find_image if section == "cameras" else find_part
        result.available[section] = []
        for key, entry in getattr(schema, section).items():
            if place_of(entry.feature, steps) is None:
                result.missing[key] = f"no {entry.feature}"
                continue
            try:
                find(key, entry, steps, str(source.folder))
                result.available[section].append(key)
            except DataError as error:
                result.missing[key] = str(error).partition(": ")[2]
    return result


def draft(source: Source) -> str:
    """Return a schema in YAML: cameras, vectors in `observation` and `action`, instruction."""
    sizes = {
        name: math.prod(feature.shape)
        for name, feature in sorted(source.steps.items())
        if is_number(feature) and None not in feature.shape and len(feature.shape) <= 1
    }
    states = [
        name for name in sizes if name.startswith("observation/") and sizes[name] <= LONGEST_STATE
    ]
    actions = [
        name
        for name in sizes
        if name.startswith("action") and not name.rpartition("/")[2].startswith(_NO_ACTION)
    ]
    sections = (source.cameras, states, actions)
    tree: dict[str, Any] = {
        title: _entries(names, sizes) for title, names in zip(SECTIONS, sections)
    }
    if words := survey.language(source):
        tree["language"] = words.replace("/", ".")
    return _HEAD.format(name=source.name) + yaml.safe_dump(
        tree, sort_keys=False, default_flow_style=None, width=_WIDTH
    )


def _entries(names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the entries of a section. A key is the last word of a feature's name, or the complete
    name where that is not unique.
    """
    leaves = [name.rpartition("/")[2] for name in names]
    return {
        leaf if leaves.count(leaf) == 1 else name: {"feature": name.replace("/", ".")}
        | ({"of": sizes[name]} if name in sizes else {})
        for leaf, name in zip(leaves, names)
    }
