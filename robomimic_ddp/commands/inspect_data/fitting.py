"""Which of the package's schemas fits a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.features import is_picture, place_of, step_features
from robomimic_ddp.data.rlds.schema.fields import find_fields, find_part
from robomimic_ddp.data.rlds.schema.spec import Entry, Schema, load_schema, packaged
from robomimic_ddp.errors import DataError


@dataclass
class Fit:
    """The keys of a schema that a dataset has, by section, and those that it lacks, with why."""

    schema: Schema
    available: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether a policy can be trained: it has all suggested actions and an observation."""
        actions = self.schema.suggested.get("actions", list(self.schema.actions))
        observations = self.available["cameras"] + self.available["states"]
        return (
            bool(actions) and set(actions) <= set(self.available["actions"]) and bool(observations)
        )

    def suggested(self, section: str) -> list[str]:
        """Return the keys of a section for a drafted config."""
        suggested = self.schema.suggested.get(section, self.available[section])
        return [key for key in self.available[section] if key in suggested]


def fits(source: Source) -> dict[str, Fit]:
    """Return how each of the package's schemas fits."""
    return {name: fit(source, load_schema(name)) for name in packaged()}


def fit(source: Source, schema: Schema) -> Fit:
    """Return how one schema fits."""
    where = str(source.folder)
    steps, result = step_features(source.features, where), Fit(schema)
    for section in ("cameras", "states", "actions"):
        result.available[section] = []
        for key, entry in getattr(schema, section).items():
            reason = _why_missing(key, entry, section == "cameras", steps, where)
            if reason is None:
                result.available[section].append(key)
            else:
                result.missing[key] = reason
    return result


def _why_missing(
    key: str, entry: Entry, is_camera: bool, steps: Mapping[str, Any], where: str
) -> str | None:
    place = place_of(entry.feature, steps)
    if place is None:
        return f"no {entry.feature}"
    if is_camera:
        is_rgb = is_picture(steps[place])
        return None if is_rgb else f"{entry.feature} is not a picture of 3 colours"
    try:
        find_part(key, entry, steps, where)
    except DataError as error:
        return str(error).partition(": ")[2]
    return None


def require(source: Source, fit: Fit) -> None:
    """Raises DataError, as training does, if the dataset lacks a key that is not optional."""
    cameras, states, actions = (fit.available[name] for name in ("cameras", "states", "actions"))
    where = str(source.folder)
    find_fields(source.features, where, cameras + states, cameras, actions, fit.schema)


def best(fits: Mapping[str, Fit]) -> str | None:
    """Return the name of the schema that fits with the most keys, or None."""
    counts = {name: sum(map(len, fit.available.values())) for name, fit in fits.items() if fit.fits}
    return max(counts, key=counts.__getitem__, default=None)
