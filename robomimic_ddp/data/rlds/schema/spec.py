"""Schemas: the host's keys for the features of a dataset, read from YAML.

The package's schemas are in `schemas/` (linked as configs/rlds/). docs/rlds_schemas.md explains the
keys. Places are dotted names of step features ("observation.wrist_image_left"); filters may also
name features of the whole episode.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths
from robomimic_ddp.data.rlds.schema.rotations import SIZES, require_format
from robomimic_ddp.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
DEFAULT = "droid"
OF_EPISODE = "episode:"
"""Prefix of features of the whole episode in the result of `EpisodeParser`."""
_TESTS = ("equals", "contains", "matches")
_SECTIONS = ("cameras", "states", "actions", "language", "success", "filters", "suggested")


@dataclass(frozen=True)
class Entry:
    """The source of one host key. feature: the step feature, of length `of` if not None; columns:
    None for all; rotation: (from, to) formats, or None; optional: a dataset may lack it, unless the
    config uses it.
    """

    feature: str
    columns: tuple[int, int] | None = None
    rotation: tuple[str, str] | None = None
    of: int | None = None
    optional: bool = False


@dataclass(frozen=True)
class Filter:
    """Keeps episodes whose `feature` passes `test` ("equals", "contains" or "matches") with
    `value`. For a step feature the last step counts.
    """

    feature: str
    test: str
    value: Any
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.feature} {self.test} {self.value!r}"

    def accepts(self, episode: Mapping[str, Any]) -> bool:
        """Return whether an episode of `EpisodeParser` passes; one without steps does not."""
        value = episode[self.feature]
        if not self.feature.startswith(OF_EPISODE):
            if not len(value):
                return False
            value = value[-1]
        if not isinstance(value, bytes):
            return float(value) == float(self.value)
        text = value.decode("utf-8", "replace")
        if self.test == "equals":
            return text == self.value
        if self.test == "contains":
            return self.value in text
        return re.fullmatch(self.value, text) is not None


@dataclass(frozen=True)
class Schema:
    """Host key -> entry for cameras, states and actions; the instruction; the filter for successful
    episodes (train.success_only), and the filters of all. suggested: "cameras", "states", "actions"
    -> the keys that a generated config uses.
    """

    name: str
    cameras: Mapping[str, Entry]
    states: Mapping[str, Entry]
    actions: Mapping[str, Entry]
    language: Entry | None
    success: Filter | None
    filters: tuple[Filter, ...] = ()
    suggested: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def observations(self) -> dict[str, Entry]:
        """Cameras and states."""
        return {**self.cameras, **self.states}


def packaged() -> list[str]:
    """Return the names of the schemas that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_schema(name: str = DEFAULT) -> Schema:
    """Return the package's schema `name`, or that of a YAML file. Raises ConfigError."""
    if name in packaged():
        return _loaded(FOLDER / f"{name}.yaml")
    path = paths.expanded(name)
    if not path.is_file():
        raise ConfigError(
            f"train.rlds_schema={name!r}: neither a file nor one of the package's schemas "
            f"({', '.join(packaged())}). `robomimic-ddp inspect-data DATA_SET -o DIR` writes one."
        )
    return parse_schema(_read(path), str(path))


@functools.cache
def _loaded(path: Path) -> Schema:
    return parse_schema(_read(path), path.stem)


def _read(path: Path) -> Any:
    try:
        return files.read_yaml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the schema {path} cannot be read as YAML: {error}") from error


def parse_schema(tree: Any, where: str) -> Schema:
    """Return the schema in the plain values `tree` of the file `where`. Raises ConfigError."""
    tree = _mapping(tree, f"the schema {where}", _SECTIONS)
    entries = {
        section: {
            str(key): _entry(value, f"{where}: {section}.{key}")
            for key, value in _mapping(tree.get(section), f"{where}: {section}").items()
        }
        for section in ("cameras", "states", "actions")
    }
    for key, entry in entries["cameras"].items():
        if entry.columns or entry.rotation:
            raise ConfigError(f"{where}: cameras.{key}: an image has no columns and no rotation.")
    language, success = tree.get("language"), tree.get("success")
    filters = tree.get("filters") or []
    if not isinstance(filters, list):
        raise ConfigError(f"{where}: filters={filters!r}: expected a list.")
    suggested = _mapping(tree.get("suggested"), f"{where}: suggested", tuple(entries))
    for section, keys in suggested.items():
        for key in keys:
            _require_among(key, entries[section], f"{where}: suggested.{section}")
    return Schema(
        where,
        **entries,
        language=_entry(language, f"{where}: language") if language is not None else None,
        success=_filter(success, f"{where}: success") if success is not None else None,
        filters=tuple(
            _filter(condition, f"{where}: filters[{n}]") for n, condition in enumerate(filters)
        ),
        suggested=suggested,
    )


def _mapping(value: Any, where: str, known: Sequence[str] | None = None) -> dict:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected keys with values, found {value!r}.")
    for key in value if known is not None else ():
        _require_among(key, known or (), where)
    return value


def _require_among(key: Any, known: Any, where: str) -> None:
    if key not in known:
        hint = did_you_mean(key, known)
        raise ConfigError(f"{where}: unknown key {key!r}.{hint} Known: {', '.join(known)}.")


def _entry(value: Any, where: str) -> Entry:
    if isinstance(value, str):
        value = {"feature": value}
    tree = _mapping(value, where, ("feature", "columns", "rotation", "of", "optional"))
    feature, columns, of = _feature(tree, where), tree.get("columns"), tree.get("of")
    if columns is not None:
        is_pair = isinstance(columns, list) and [type(n) for n in columns] == [int, int]
        if not is_pair or not 0 <= columns[0] < columns[1]:
            raise ConfigError(
                f"{where}: columns={columns!r}: expected [first, end]; the first three: [0, 3]."
            )
    if of is not None and (type(of) is not int or of < 1):
        raise ConfigError(f"{where}: of={of!r}: expected the length of the feature, such as 7.")
    rotation = _rotation(tree.get("rotation"), where)
    if rotation and columns and columns[1] - columns[0] != SIZES[rotation[0]]:
        raise ConfigError(
            f"{where}: columns {columns} are {columns[1] - columns[0]} numbers, and {rotation[0]} "
            f"has {SIZES[rotation[0]]}."
        )
    return Entry(
        feature, tuple(columns) if columns else None, rotation, of, tree.get("optional") is True
    )


def _rotation(value: Any, where: str) -> tuple[str, str] | None:
    if value is None:
        return None
    tree = _mapping(value, f"{where}: rotation", ("from", "to"))
    formats = [require_format(tree.get(end), f"{where}: rotation.{end}") for end in ("from", "to")]
    return (formats[0], formats[1])


def _filter(value: Any, where: str) -> Filter:
    tree = _mapping(value, where, ("feature", *_TESTS, "optional"))
    tests = [test for test in _TESTS if test in tree]
    if len(tests) != 1:
        raise ConfigError(f"{where}: expected exactly one of {', '.join(_TESTS)}, found {tests}.")
    wanted = tree[tests[0]]
    kinds = (str,) if tests[0] != "equals" else (str, bool, int, float)
    if not isinstance(wanted, kinds):
        raise ConfigError(f"{where}: {tests[0]}={wanted!r}: expected text.")
    if tests[0] == "matches":
        try:
            re.compile(wanted)
        except re.error as error:
            raise ConfigError(
                f"{where}: matches: {wanted!r} is not a regular expression: {error}."
            ) from error
    return Filter(_feature(tree, where), tests[0], wanted, tree.get("optional") is True)


def _feature(tree: Mapping, where: str) -> str:
    feature = tree.get("feature")
    if not isinstance(feature, str) or not feature:
        raise ConfigError(
            f"{where}: feature={feature!r}: expected the dotted name of a feature, such as "
            "observation.state (`robomimic-ddp inspect-data` lists them)."
        )
    return feature
