"""What `robomimic-ddp prepare-data` notes in the sets that it writes, and what is read from that.

A prepared set has the episodes of its source in the same files and order, with smaller images. Its
`metadata.json`, which is `builder.info.metadata` of tensorflow-datasets, has under KEY:

- format: FORMAT; source: `Source.identity`; folder, fingerprint: of the source;
- size: [height, width]; encoding, quality: of JPEG;
- cameras, dropped: step features that were kept and dropped;
- left_out: {split: {number of file: [numbers of records in the file of the first source]}}, damaged
  episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.errors import DataError

KEY = "robomimic_ddp_prepared"
FORMAT = 2
INFO = "metadata.json"
"""The file of tensorflow-datasets' MetadataDict."""


def read(folder: Path) -> dict[str, Any] | None:
    """Return the notes of a prepared set, or None for any other. Raises DataError for notes that
    cannot be read.
    """
    try:
        notes = files.read_json(folder / INFO).get(KEY)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{folder / INFO} cannot be read: {error}. Copy or prepare the dataset again."
        ) from error
    if notes is not None and notes.get("format") != FORMAT:
        raise DataError(
            f"{folder} was prepared in format {notes.get('format')!r}, and format {FORMAT} is "
            "expected. Use the robomimic-ddp that prepared it, or prepare it again."
        )
    return notes


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Return a hex digest of a `Source.identity`."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]


def quality(notes: Mapping[str, Any]) -> str:
    """Return the size and quality of its images, for people."""
    height, width = notes["size"]
    return f"{height}x{width}, JPEG quality {notes['quality']}"


def damaged(notes: Mapping[str, Any]) -> int:
    """Return the number of damaged episodes of the source that are left out."""
    return sum(len(names) for split in notes["left_out"].values() for names in split.values())


def described(notes: Mapping[str, Any], size: Sequence[int]) -> str:
    """Return a line for a run that asks for images of `size`, height and width. It says so if they
    are resized a second time.
    """
    line = f"prepared from {notes['source']['dataset']} at {quality(notes)}"
    if list(size) != notes["size"]:
        line += f"; resized again to {size[0]}x{size[1]} (observation.image_dim)"
    return line
