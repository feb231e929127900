"""Drafts a schema from names and shapes alone, where none of the package's fits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

import yaml

from robomimic_ddp.commands.inspect_data import survey
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.features import is_number, step_features

LONGEST_STATE = 64
"""Longer vectors are not states of a robot but embeddings."""
_NO_ACTION = ("is_", "terminate")
_HEAD = """\
# {name}, from the names and shapes of its features. Check it: which columns are
# rotations, and in which format? docs/rlds_schemas.md explains every key. For example:
#   action/rotation:
#     feature: action
#     columns: [3, 6]
#     rotation: {{from: euler_xyz, to: rot_6d}}
"""


def text_of(source: Source) -> str:
    """Return a schema in YAML: cameras, vectors below `observation` and `action`, instruction."""
    steps = step_features(source.features, str(source.folder))
    sizes = {
        name: math.prod(feature.shape)
        for name, feature in sorted(steps.items())
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
    words = survey.language(source)
    lines = [
        *_section("cameras", {name: _dotted(name) for name in sorted(survey.cameras(source))}),
        *_section("states", {name: _part(name, sizes[name]) for name in states}),
        *_section("actions", {name: _part(name, sizes[name]) for name in actions}),
        *([f"language: {_dotted(words)}"] if words else ()),
    ]
    return _HEAD.format(name=source.name) + "\n".join(lines) + "\n"


def _section(title: str, entries: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a section. A key is the last part of a feature's name, or all of it if
    that is not unique.
    """
    leaves = [name.rpartition("/")[2] for name in entries]
    keys = leaves if len({*leaves}) == len(leaves) else list(entries)
    yield f"{title}:" if entries else f"{title}: {{}}"
    for key, entry in zip(keys, entries.values(), strict=True):
        yield f"  {_word(key)}: {entry}"


def _part(name: str, size: int) -> str:
    return f"{{feature: {_dotted(name)}, columns: [0, {size}], of: {size}}}"


def _dotted(name: str) -> str:
    return _word(name.replace("/", "."))


def _word(text: str) -> str:
    """Return the text, quoted if YAML would read it otherwise."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and yaml.safe_load(text) == text
    return text if plain else json.dumps(text)
