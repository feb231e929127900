"""What a run reads of a dataset: entries of a schema, found among its features and validated.

A key that is not in the schema is a name of a feature: "state/gripper" finds
`observation/state/gripper`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robomimic_ddp.data.rlds.schema.features import (
    episode_features,
    is_encoded,
    is_number,
    is_picture,
    listed,
    nearest,
    place_of,
    step_features,
)
from robomimic_ddp.data.rlds.schema.rotations import SIZES
from robomimic_ddp.data.rlds.schema.spec import OF_EPISODE, Entry, Filter, Schema
from robomimic_ddp.errors import DataError


@dataclass(frozen=True)
class Part:
    """Elements [start, stop) of the flattened step feature `source`; rotation: (from, to)."""

    source: str
    start: int
    stop: int
    rotation: tuple[str, str] | None = None

    @property
    def size(self) -> int:
        """Number of elements after conversion."""
        return SIZES[self.rotation[1]] if self.rotation else self.stop - self.start


@dataclass(frozen=True)
class Fields:
    """What a run reads of one dataset, validated against its features.

    images: host observation key -> step feature; low_dim: host observation key -> part;
    low_dim_shapes: host key -> shape of one frame; actions: host action key -> part; language: the
    step feature, or None; success: the filter for successful episodes, or None; filters: every
    episode must pass them. Features of filters are named as by `EpisodeParser`.
    """

    images: Mapping[str, str]
    low_dim: Mapping[str, Part]
    low_dim_shapes: Mapping[str, tuple[int, ...]]
    actions: Mapping[str, Part]
    language: str | None
    success: Filter | None
    filters: tuple[Filter, ...] = ()

    @property
    def action_size(self) -> int:
        """Length of the action vector."""
        return sum(part.size for part in self.actions.values())

    @property
    def judged(self) -> tuple[str, ...]:
        """The features that filters use."""
        conditions = (*self.filters, *([self.success] if self.success else ()))
        return tuple(dict.fromkeys(condition.feature for condition in conditions))


def find_fields(
    features: Any,
    where: str,
    obs_keys: Sequence[str],
    image_keys: Sequence[str],
    action_keys: Sequence[str],
    schema: Schema,
) -> Fields:
    """Find where `features` of the dataset `where` have `obs_keys` (images: `image_keys`) and
    `action_keys`, by `schema`. Raises DataError for a key that it lacks, and for
    every name of the schema that it lacks, requested or not, unless `optional`.
    """
    steps = step_features(features, where)
    _require_entries(schema, steps, where)
    images, low_dim, shapes = {}, {}, {}
    known = schema.observations
    for key in obs_keys:
        entry = _entry(key, known.get(key), steps, where, schema.name)
        if key in image_keys:
            images[key] = find_image(key, entry, steps, where)
        else:
            low_dim[key], shapes[key] = find_part(key, entry, steps, where)
    actions = {key: _find_action(key, steps, where, schema) for key in action_keys}
    success, *filters = (
        _find_filter(condition, features, steps, where, schema.name)
        for condition in (schema.success, *schema.filters)
    )
    return Fields(
        images,
        low_dim,
        shapes,
        actions,
        _find_language(schema, steps, where),
        success,
        tuple(filter(None, filters)),
    )


def _require_entries(schema: Schema, steps: Mapping[str, Any], where: str) -> None:
    """Raise a DataError that names all entries that the dataset lacks or that do not fit, unused
    ones too: a misspelt feature would silently leave an action or a camera out of the policy.
    """
    wanted = [
        (section, key, entry)
        for section in ("cameras", "states", "actions")
        for key, entry in getattr(schema, section).items()
        if not entry.optional
    ]
    lacking = [
        f"  {section}.{key}: `{entry.feature}` is not there.{nearest(entry.feature, steps)}"
        for section, key, entry in wanted
        if place_of(entry.feature, steps) is None
    ]
    if lacking:
        raise DataError(
            f"{where} does not contain what the schema {schema.name} names:\n"
            + "\n".join(lacking)
            + f"\nFound {listed(steps)}. A policy would be trained without them: correct the "
            "names, or mark with `optional: true` what only some datasets have."
        )
    for section, key, entry in wanted:
        if section == "cameras":
            find_image(key, entry, steps, where)
        else:
            find_part(key, entry, steps, where)


def available_keys(entries: Mapping[str, Entry], steps: Mapping[str, Any]) -> list[str]:
    """Return the keys of `entries` whose feature is among `steps`."""
    return [key for key, entry in entries.items() if place_of(entry.feature, steps)]


def _entry(
    key: str, entry: Entry | None, steps: Mapping[str, Any], where: str, schema: str
) -> Entry:
    """Return the schema's entry for a key if the dataset has it, else one with the key's name."""
    if entry is not None and place_of(entry.feature, steps):
        return entry
    for name in (key, f"observation/{key}"):
        if place_of(name, steps):
            return Entry(name)
    missing = entry.feature if entry else f"observation.{key}"
    raise DataError(
        f"{where} does not contain {key!r}: looked for `steps/{missing.replace('.', '/')}` (schema "
        f"{schema}), found {listed(steps)}.{nearest(missing, steps)} Take the key out of the "
        "config, use a dataset that has it, or name its feature in a schema of your own "
        "(train.rlds_schema)."
    )


def find_part(
    key: str, entry: Entry, steps: Mapping[str, Any], where: str
) -> tuple[Part, tuple[int, ...]]:
    """Return an entry's numbers and the shape of one frame. Raises DataError if they do not fit."""
    place = place_of(entry.feature, steps)
    assert place is not None, entry
    feature = steps[place]
    shape = tuple(feature.shape)
    if None in shape or not is_number(feature):
        kind = f"{'encoded ' * is_encoded(feature)}{type(feature).__name__}"
        raise DataError(
            f"{where}: {key!r} needs numbers of a fixed shape, and `steps/{place}` is {kind} of "
            f"shape {shape}."
        )
    size = math.prod(shape)
    start, stop = entry.columns or (0, size)
    if entry.of not in (None, size) or stop > size:
        raise DataError(
            f"{where}: `steps/{place}` has {size} numbers, and the schema's {key!r} expects "
            f"{entry.of or f'at least {stop}'}: the dataset has another form. Use another schema "
            "(train.rlds_schema; `robomimic-ddp inspect-data` says which one fits)."
        )
    if entry.rotation and stop - start != SIZES[entry.rotation[0]]:
        raise DataError(
            f"{where}: {key!r} is {entry.rotation[0]} ({SIZES[entry.rotation[0]]} numbers) in the "
            f"schema, and `steps/{place}` gives {stop - start}. Name its `columns`."
        )
    part = Part(place, start, stop, entry.rotation)
    whole = entry.columns is None and entry.rotation is None
    return part, shape if whole and shape else (part.size,)


def _find_action(key: str, steps: Mapping[str, Any], where: str, schema: Schema) -> Part:
    entry = schema.actions.get(key)
    if entry is not None and place_of(entry.feature, steps):
        return find_part(key, entry, steps, where)[0]
    for name in (key, {"actions": "action"}.get(key)):
        place = place_of(name, steps) if name else None
        if place and len(steps[place].shape) <= 1:
            return find_part(key, Entry(place), steps, where)[0]
    missing = entry.feature if entry else key
    raise DataError(
        f"{where} does not contain the action {key!r} of train.action_keys: found {listed(steps)}."
        f"{nearest(missing, steps)} Known keys of schema {schema.name} are "
        f"{', '.join(schema.actions)}; the name of a step feature is one, too."
    )


def _find_language(schema: Schema, steps: Mapping[str, Any], where: str) -> str | None:
    if schema.language is None:
        return None
    place = place_of(schema.language.feature, steps)
    if place is None and not schema.language.optional:
        raise DataError(
            f"{where}: schema {schema.name} has the instruction in `{schema.language.feature}`, "
            f"which is not a step feature: found {listed(steps)}."
            f"{nearest(schema.language.feature, steps)}"
        )
    if place is not None and (is_number(steps[place]) or tuple(steps[place].shape)):
        raise DataError(
            f"{where}: the instruction `steps/{place}` is {type(steps[place]).__name__} of shape "
            f"{tuple(steps[place].shape)}; one text a step is needed."
        )
    return place


def _find_filter(
    condition: Filter | None, features: Any, steps: Mapping[str, Any], where: str, schema: str
) -> Filter | None:
    """Return the filter with `EpisodeParser`'s name; None if optional and missing."""
    if condition is None:
        return None
    whole = episode_features(features)
    place, among = place_of(condition.feature, whole), whole
    if place is None:
        place, among = place_of(condition.feature, steps), steps
    if place is None:
        if condition.optional:
            return None
        both = {**whole, **steps}
        raise DataError(
            f"{where}: schema {schema} filters by `{condition.feature}`, which the dataset does "
            f"not have.{nearest(condition.feature, both)} Found {listed(both)}."
        )
    text = not is_number(among[place])
    if tuple(among[place].shape) or text != isinstance(condition.value, str):
        raise DataError(
            f"{where}: the filter `{condition}` of schema {schema} does not fit the feature, which "
            f"is {'text' if text else 'a number'} of shape {tuple(among[place].shape)}."
        )
    return replace(condition, feature=OF_EPISODE * (among is whole) + place)


def find_image(key: str, entry: Entry, steps: Mapping[str, Any], where: str) -> str:
    place = place_of(entry.feature, steps) or ""
    if not is_picture(steps[place]):
        shape, kind = tuple(steps[place].shape), type(steps[place]).__name__
        raise DataError(
            f"{where}: {key!r} is a camera (`cameras` of the schema, or "
            f"observation.modalities.obs.rgb), but `steps/{place}` is a {kind} feature of shape "
            f"{shape}. Expected an encoded image with 3 channels."
        )
    return place
