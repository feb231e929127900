"""The metadata of a prepared set: that of its source with the new image sizes, and its notes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.source import INFO_FILE, Source
from robomimic_ddp.distributed.atomic_files import atomic_open


def write(
    work: Path,
    folder: Path,
    notes: Mapping[str, Any],
    done: Mapping[Any, Any],
    images: Mapping[str, tuple[int, int] | None],
) -> None:
    """Write the metadata of the set in `work`, prepared from the dataset in `folder`.

    notes: see `index.prepared`, without `left_out`; done: `RecordFile` -> its note;
    images: camera -> height and width, None for a dropped one. Raises OSError.
    """
    from google.protobuf import json_format

    # Not the source's file, which older versions of tensorflow-datasets have written differently.
    features = json_format.MessageToDict(Source(folder).features.to_proto())
    _change_features(features, images)
    info = files.read_json(folder / INFO_FILE)
    line = f"Prepared by robomimic-ddp: images of {prepared.quality(notes)}."
    info["description"] = f"{info.get('description', '')}\n{line}".strip()
    info.pop("downloadSize", None)
    path = folder / prepared.INFO
    metadata = files.read_json(path) if path.is_file() else {}
    lacking = metadata.get(prepared.KEY, {"left_out": {}})["left_out"]
    left_out: dict[str, dict[str, list[int]]] = {}
    for split in info["splits"]:
        of_split = {f: note for f, note in done.items() if f.split == split["name"]}
        split["shardLengths"] = [str(note["episodes"]) for note in of_split.values()]
        split["numBytes"] = str(sum(note["bytes"] for note in of_split.values()))
        of_files = {str(file.number): note["left_out"] for file, note in of_split.items()}
        for number, lost in lacking.get(split["name"], {}).items():
            of_files[number] = _merged_left_out(lost, of_files[number])
        of_files = {number: lost for number, lost in of_files.items() if lost}
        left_out |= {split["name"]: of_files} if of_files else {}
    metadata[prepared.KEY] = {**notes, "left_out": left_out}
    # INFO_FILE last: tensorflow-datasets reads a folder that has it.
    contents = {"features.json": features, prepared.INFO: metadata, INFO_FILE: info}
    for text in folder.iterdir():  # next to the records, such as the names of labels
        # Not the source's `contents`: another task may have written those of the set already.
        if text.suffix in (".txt", ".json") and text.name not in contents and text.is_file():
            with text.open("rb") as source, atomic_open(work / text.name, "wb") as copy:
                shutil.copyfileobj(source, copy)
    for name, value in contents.items():
        with atomic_open(work / name) as file:
            json.dump(value, file, indent=None if name == prepared.INFO else 2, sort_keys=True)


def _change_features(features: Any, images: Mapping[str, tuple[int, int] | None]) -> None:
    """Set the sizes of `images` in a `features.json`, and remove images without a size."""
    steps = _children(features)["steps"]
    for name, size in images.items():
        *groups, leaf = name.split("/")
        parents = [_children(steps)]
        for group in groups:
            parents.append(_children(parents[-1][group]))
        if size is not None:
            image = parents[-1][leaf]["image"]
            image["shape"] = {"dimensions": [*map(str, size), "3"]}
            image["encodingFormat"] = "jpeg"
            continue
        del parents[-1][leaf]
        for parent, group in zip(reversed(parents[:-1]), reversed(groups)):
            if not _children(parent[group]):
                del parent[group]


def _merged_left_out(lost: Sequence[int], left_out: Sequence[int]) -> list[int]:
    """Return the numbers of the records that two preparations of a file have left out. lost: by the
    first; left_out: by the second, numbered as the first has written them.
    """
    written = [n for n in range(len(lost) + max(left_out, default=-1) + 1) if n not in lost]
    return sorted([*lost, *(written[n] for n in left_out)])


def _children(node: Any) -> Any:
    """Return the features of a dict in a `features.json`, or of the steps of a dataset."""
    while "featuresDict" not in node:
        node = node["sequence"]["feature"]
    return node["featuresDict"]["features"]
