"""The metadata of a prepared set: the source's, with other images, and the notes of the set."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.source import INFO_FILE
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.errors import DataError


def texts_of(folder: Path) -> list[Path]:
    """Return the texts beside the records of a dataset, such as the names of labels. Raises
    DataError for a link: what it points to may not be meant for those who get the set.
    """
    texts = [path for path in sorted(folder.iterdir()) if path.suffix in (".txt", ".json")]
    for path in filter(Path.is_symlink, texts):
        raise DataError(
            f"{path} is a link to {path.resolve()}, and prepare-data would copy that into the set. "
            "If it belongs to the dataset, put the file itself in the place of the link."
        )
    return [path for path in texts if path.is_file()]


def write(
    work: Path,
    folder: Path,
    notes: Mapping[str, Any],
    done: Mapping[Any, Any],
    images: Mapping[str, tuple[int, int] | None],
) -> None:
    """Write the metadata of the set in `work`, prepared from the dataset in `folder`.

    notes: see `index.prepared`, without `psnr` and `left_out`; done: a `RecordFile` -> its note;
    images: a camera -> height and width, None for one that was dropped. Raises OSError, DataError.
    """
    notes = {**notes, "psnr": _merged_psnr(done.values())}
    features = files.read_json(folder / "features.json")
    _change_features(features, images)
    info = files.read_json(folder / INFO_FILE)
    line = f"Prepared by robomimic-ddp: images of {prepared.quality(notes)}."
    info["description"] = f"{info.get('description', '')}\n{line}".strip()
    info.pop("downloadSize", None)
    left_out: dict[str, dict[str, list[int]]] = {}
    for split in info["splits"]:
        of_split = {f: note for f, note in done.items() if f.split == split["name"]}
        split["shardLengths"] = [str(note["episodes"]) for note in of_split.values()]
        split["numBytes"] = str(sum(note["bytes"] for note in of_split.values()))
        lost = {str(f.number): n["left_out"] for f, n in of_split.items() if n["left_out"]}
        left_out |= {split["name"]: lost} if lost else {}
    path = folder / prepared.INFO
    metadata = files.read_json(path) if path.is_file() else {}
    metadata[prepared.KEY] = {**notes, "left_out": left_out}
    for text in texts_of(folder):
        shutil.copyfile(text, work / text.name)
    # INFO_FILE last: tensorflow-datasets reads a folder that has it.
    whole = {"features.json": features, prepared.INFO: metadata, INFO_FILE: info}
    for name, value in whole.items():
        with atomic_open(work / name) as file:
            json.dump(value, file, indent=None if name == prepared.INFO else 2)


def _change_features(features: Any, images: Mapping[str, tuple[int, int] | None]) -> None:
    """Set the sizes of `images` in a `features.json`, and take out those without one."""
    steps = _children(features)["steps"]
    for name, size in images.items():
        *groups, leaf = name.split("/")
        places = [_children(steps)]
        for group in groups:
            places.append(_children(places[-1][group]))
        if size is not None:
            image = places[-1][leaf]["image"]
            image["shape"] = {"dimensions": [*map(str, size), "3"]}
            image["encodingFormat"] = "jpeg"
            continue
        del places[-1][leaf]
        for place, group in zip(reversed(places[:-1]), reversed(groups)):
            if not _children(place[group]):
                del place[group]


def _merged_psnr(notes: Iterable[Any]) -> dict[str, Any] | None:
    """Return `psnr` of the set's notes (see `index.prepared`) from the `notes` of its files."""
    psnr = [value for note in notes for value in note["psnr"]]
    if not psnr:
        return None
    return {"mean": statistics.fmean(psnr), "least": min(psnr), "frames": len(psnr)}


def _children(node: Any) -> Any:
    """Return the features of a dict in a `features.json`, or of the steps of a dataset."""
    while "featuresDict" not in node:
        node = node["sequence"]["feature"]
    return node["featuresDict"]["features"]
