"""Reads an RLDS dataset's metadata, and some episodes spread over its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.commands.inspect_data.hdf5 import length_summary
from robomimic_ddp.config import paths
from robomimic_ddp.data.rlds.index.example import EpisodeParser
from robomimic_ddp.data.rlds.index.records import offsets_of, rows_of
from robomimic_ddp.data.rlds.index.source import Source, find_dataset, is_rlds_folder
from robomimic_ddp.data.rlds.pipeline.images import RecordError, decode
from robomimic_ddp.data.rlds.schema.features import episode_features, is_number, is_picture
from robomimic_ddp.errors import DataError

SHEET_EPISODES, SHEET_FRAMES = 3, 6
"""Size of the contact sheet: episodes, and frames of each."""
LANGUAGE_WORDS = ("instruction", "language")
_THREADS = 2
_REMEDY = "`robomimic-ddp prepare-data --skip-corrupt`"


@dataclass(frozen=True)
class Episode:
    """An episode that was read. length: in steps; texts: the instruction of each step; frames:
    camera -> list of (step, uint8 [H, W, 3]), for the first SHEET_EPISODES only.
    """

    length: int
    texts: Sequence[str]
    frames: Mapping[str, list]


def find(path: Path) -> Path:
    """Return the version folder at or below `path`. Raises DataError for none or several."""
    path = paths.absolute(path)
    if is_rlds_folder(str(path)):
        return path
    datasets = [path] if _has_versions(path) else sorted(filter(_has_versions, path.iterdir()))
    if len(datasets) > 1:
        names = ", ".join(folder.name for folder in datasets)
        raise DataError(f"{path} contains several datasets: {names}. Name one: {datasets[0]}.")
    dataset = datasets[0] if datasets else path  # with none, this raises with the reason
    return find_dataset(str(dataset.parent), dataset.name)


def _has_versions(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(is_rlds_folder(str(entry)) for entry in folder.iterdir())
    except PermissionError:  # such as lost+found, where a disk is mounted
        return False


def language(source: Source) -> str | None:
    """Return the step feature that is probably the instruction, or None."""
    texts = [name for name, f in source.steps.items() if not f.shape and not is_number(f)]
    texts.sort(key=lambda name: (type(source.steps[name]).__name__ != "Text", len(name)))
    return next((name for word in LANGUAGE_WORDS for name in texts if word in name), None)


def read(source: Source, most: int) -> list[Episode]:
    """Read at most `most` episodes (0: all). Raises DataError for a damaged file."""
    pictures, words, steps = source.cameras, language(source), source.steps
    names = [*([words] if words else []), *pictures]
    names = names or [min(steps, key=lambda name: None in steps[name].shape)]
    parse = EpisodeParser(source.features, names)
    numbers, count = _chosen(source, most)
    files = [source.files[number] for number in numbers]
    positions = [
        (index, offset)
        for index, number in enumerate(numbers)
        for offset in offsets_of(files[index], source.episodes_per_file[number], False)[:count]
    ]

    def episode_of(raw: bytes, is_shown: bool) -> tuple[Episode]:
        episode = parse(raw)
        length = len(episode[names[0]])
        texts = [text.decode("utf-8", "replace") for text in episode[words]] if words else []
        frames = _frames(episode, pictures, length) if is_shown and length else {}
        return (Episode(length, texts, frames),)

    options = (_THREADS, f"reading {source.folder}", False, _REMEDY)
    shown, others = positions[:SHEET_EPISODES], positions[SHEET_EPISODES:]
    return [
        episode
        for chosen, is_shown in ((shown, True), (others, False))
        for *_, episode in rows_of(files, chosen, partial(episode_of, is_shown=is_shown), *options)
    ]


def _chosen(source: Source, most: int) -> tuple[Sequence[int], int | None]:
    """Return the numbers of the files to read, evenly spread, and how many episodes to read of each
    (None: all).
    """
    files = len(source.files)
    if not 0 < most < sum(source.episodes_per_file):
        return range(files), None
    count = min(most, files)
    return [files * number // count for number in range(count)], most // count


def _frames(episode: Mapping[str, Any], pictures: list[str], length: int) -> dict[str, list]:
    steps = sorted({(length - 1) * n // (SHEET_FRAMES - 1) for n in range(SHEET_FRAMES)})
    frames: dict[str, list] = {name: [] for name in pictures}
    for name, step in product(pictures, steps):
        try:
            frames[name].append((step, decode(episode[name][step])))
        except RecordError as error:
            raise RecordError(f"step {step}, `{name}` cannot be decoded: {error}") from error
    return frames


def report_of(source: Source, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the report of the dataset, as plain values for JSON."""
    texts = [text for episode in episodes for text in {*episode.texts}]
    different = sorted({*texts} - {""})
    notes = source.prepared
    return {
        "kind": "rlds",
        "path": str(source.folder),
        "episodes": sum(source.episodes_per_file),
        "length": length_summary([episode.length for episode in episodes]),
        "files": len(source.files),
        "bytes": sum(source.sizes),
        "cameras": {name: _size(source, name, episodes) for name in source.cameras},
        "features": {
            name: {"shape": list(f.shape), "dtype": np.dtype(f.np_dtype).name}
            for name, f in sorted(source.steps.items())
            if not is_picture(f)
        },
        "episode": [*sorted(episode_features(source.features))],
        "prepared": notes and {**notes, "source": notes["source"]["dataset"]},
        "language": {
            "feature": language(source),
            "different": len(different),
            "examples": different[:5],
            "empty": texts.count(""),
        },
    }


def _size(source: Source, camera: str, episodes: Sequence[Episode]) -> dict[str, int | None]:
    """Return the height and width as declared, otherwise those of the first frame."""
    height, width = source.steps[camera].shape[:2]
    for episode in episodes:
        if None in (height, width) and episode.frames:
            height, width = episode.frames[camera][0][1].shape[:2]
    return {"height": height, "width": width}
