"""Drafts a schema from names and shapes alone, where none of the package's fits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

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
# Lines with # are features whose use is not known: remove the # of those that you need.
"""


def text_of(source: Source) -> str:
    """Return a schema in YAML, with numeric and text features of unknown use as comments."""
    steps = step_features(source.features, str(source.folder))
    sizes = {
        name: math.prod(feature.shape)
        for name, feature in sorted(steps.items())
        if is_number(feature) and None not in feature.shape
    }
    vectors = [name for name in sizes if len(steps[name].shape) <= 1]
    states = [
        name for name in vectors if name.startswith("observation/") and sizes[name] <= LONGEST_STATE
    ]
    possible = [name for name in sizes if not name.rpartition("/")[2].startswith(_NO_ACTION)]
    actions = [name for name in vectors if name.startswith("action") and name in possible]
    cameras, words = sorted(survey.cameras(source)), survey.language(source)
    texts = [name for name, f in sorted(steps.items()) if not is_number(f) and not f.shape]
    others = [name for name in sizes if name not in (*states, *actions)]
    lines = [
        "cameras:" if cameras else "cameras: {}",
        *(f"  {_word(key)}: {_dotted(name)}" for key, name in _keys(cameras).items()),
        *_section("states", states, others, sizes),
        *_section("actions", actions, [] if actions else possible, sizes),
        *(f"{'' if name == words else '# '}language: {_dotted(name)}" for name in texts),
    ]
    return _HEAD.format(name=source.name) + "\n".join(lines) + "\n"


def _section(
    title: str, names: list[str], others: list[str], sizes: Mapping[str, int]
) -> Iterator[str]:
    """Yield the lines of a section: its entries, and `others` as comments."""
    yield f"{title}:" if names or others else f"{title}: {{}}"
    for key, name in _keys(names, others).items():
        entry = f"{{feature: {_dotted(name)}, columns: [0, {sizes[name]}], of: {sizes[name]}}}"
        yield f"  {'' if name in names else '# '}{_word(key)}: {entry}"


def _keys(names: list[str], others: Sequence[str] = ()) -> dict[str, str]:
    """Return a key for each name: its last component, or all of it if that is not unique."""
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
    """Return the text, quoted if YAML would read it otherwise."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and yaml.safe_load(text) == text
    return text if plain else json.dumps(text)
