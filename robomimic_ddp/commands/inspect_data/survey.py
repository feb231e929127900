"""Surveys an RLDS dataset: its metadata, and some episodes spread over its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.commands.inspect_data.hdf5 import length_summary
from robomimic_ddp.data.rlds.index.records import READ_BUFFER_BYTES, episode_parser
from robomimic_ddp.data.rlds.index.source import Source, find_dataset, is_rlds_folder
from robomimic_ddp.data.rlds.schema.features import (
    episode_features,
    is_number,
    is_picture,
    step_features,
)
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.errors import DataError

SHEET_EPISODES, SHEET_FRAMES = 3, 6
"""Size of the contact sheet: episodes, frames of each."""
LANGUAGE_WORDS = ("instruction", "language")


@dataclass
class Sample:
    """Of the episodes read: lengths in steps and texts; of the first few also frames, a dict camera
    -> list of (step, uint8 [H, W, 3]) each, and an instruction.
    """

    lengths: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    frames: list[dict[str, list]] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)


def find(path: Path) -> Path:
    """Return the version folder at or below `path`. Raises DataError for none or several."""
    if is_rlds_folder(str(path)):
        return path
    path = path.absolute()
    datasets = [path] if _has_versions(path) else []
    datasets = datasets or sorted(filter(_has_versions, path.iterdir()))
    if len(datasets) > 1:
        names = ", ".join(folder.name for folder in datasets)
        raise DataError(f"{path} contains several datasets: {names}. Name one: {datasets[0]}.")
    dataset = datasets[0] if datasets else path  # without one this raises with the reason
    return find_dataset(str(dataset.parent), dataset.name)


def _has_versions(folder: Path) -> bool:
    return folder.is_dir() and any(
        is_rlds_folder(str(entry)) for entry in folder.iterdir() if entry.is_dir()
    )


def cameras(source: Source) -> dict[str, Any]:
    """Return the step features that are images."""
    steps = step_features(source.features, str(source.folder))
    return {name: feature for name, feature in steps.items() if is_picture(feature)}


def language(source: Source) -> str | None:
    """Return the step feature that is probably the instruction, or None."""
    steps = step_features(source.features, str(source.folder))
    texts = [name for name, feature in steps.items() if type(feature).__name__ == "Text"]
    texts += [name for name, f in steps.items() if not f.shape and not is_number(f)]
    for word in LANGUAGE_WORDS:
        for name in sorted(texts, key=len):
            if word in name:
                return name
    return None


def read(source: Source, most: int) -> Sample:
    """Read at most `most` episodes (0: all). Raises DataError for a damaged file."""
    tf = import_tensorflow()
    steps = step_features(source.features, str(source.folder))
    pictures, words = sorted(cameras(source)), language(source)
    plain = [name for name in steps if name not in pictures]
    short = min(plain or pictures, key=lambda name: math.prod(n or 1000 for n in steps[name].shape))
    names = sorted({short, *pictures, *([words] if words else [])})
    parse = episode_parser(source.features, names)
    sample = Sample()

    def add(raw: Any) -> None:
        episode = parse(raw)
        length = int(tf.shape(episode[short])[0])
        sample.lengths.append(length)
        texts = episode[words].numpy().tolist() if words else []
        texts = [text.decode("utf-8", "replace") for text in texts]
        sample.texts += set(texts)
        if pictures and length and len(sample.frames) < SHEET_EPISODES:
            sample.frames.append(_frames(episode, pictures, length))
            sample.instructions.append(texts[0] if texts else "")

    files, count = _chosen(source, most)
    for file in files:
        number = 0
        records = tf.data.TFRecordDataset(str(file), buffer_size=READ_BUFFER_BYTES)
        try:
            for raw in records.take(count):
                add(raw)
                number += 1
        except tf.errors.OpError as error:
            raise DataError(
                f"{file}: episode {number} is damaged, cut off, or not what the metadata promises "
                f"({str(error).splitlines()[0]}). Copy or prepare that file again."
            ) from error
    return sample


def _chosen(source: Source, most: int) -> tuple[Sequence[Path], int]:
    """Return the files to read, evenly spread, and the number of episodes of each (-1: all)."""
    files = source.files
    if not 0 < most < sum(source.episodes_per_file):
        return files, -1
    count = min(most, len(files))
    return [files[len(files) * number // count] for number in range(count)], most // count


def _frames(episode: dict[str, Any], pictures: list[str], length: int) -> dict[str, list]:
    tf = import_tensorflow()
    last = max(1, SHEET_FRAMES - 1)
    steps = sorted({(length - 1) * number // last for number in range(SHEET_FRAMES)})
    return {
        name: [
            (step, tf.io.decode_image(episode[name][step], 3, expand_animations=False).numpy())
            for step in steps
        ]
        for name in pictures
    }


def report_of(source: Source, sample: Sample) -> dict[str, Any]:
    """Return the report of the dataset, as plain values for JSON."""
    steps = step_features(source.features, str(source.folder))
    pictures, texts = cameras(source), {*sample.texts} - {""}
    return {
        "kind": "rlds",
        "path": str(source.folder),
        "episodes": sum(source.episodes_per_file),
        "length": length_summary(sample.lengths),
        "files": len(source.files),
        "bytes": sum(Path(file).stat().st_size for file in source.files),
        "cameras": {name: _camera(name, f, sample) for name, f in sorted(pictures.items())},
        "steps": {name: _described(f) for name, f in sorted(steps.items()) if name not in pictures},
        "episode": [*sorted(episode_features(source.features))],
        "prepared": source.prepared
        and {**source.prepared, "source": source.prepared["source"]["data\x20set"]},
        "language": {
            "feature": language(source),
            "different": len(texts),
            "examples": sorted(texts)[:5],
            "empty": sample.texts.count(""),
        },
    }


def _described(feature: Any) -> dict[str, Any]:
    return {
        "kind": type(feature).__name__,
        "shape": list(feature.shape),
        "dtype": np.dtype(feature.np_dtype).name.replace("object", "text"),
    }


def _camera(name: str, feature: Any, sample: Sample) -> dict[str, Any]:
    """Return height and width as declared, else of the first frame."""
    height, width = feature.shape[:2]
    if None in (height, width) and sample.frames:
        height, width = sample.frames[0][name][0][1].shape[:2]
    names = ("encoding_format", "_encoding_format")
    encoding = next(filter(None, (getattr(feature, name, None) for name in names)), None)
    return {"height": height, "width": width, "encoding": encoding}
