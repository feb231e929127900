"""Writes the drafts for a dataset: a contact sheet, a schema if none fits, and a config, which is
`job_template.json` with the dataset's folder, keys and image size.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands import figures
from robomimic_ddp.commands.inspect_data import schemas
from robomimic_ddp.commands.inspect_data.survey import SHEET_FRAMES, Episode
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.fields import find_fields
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.distributed.atomic_files import atomic_open

SHEET, CONFIG, SCHEMA = "contact_sheet.png", "config.json", "schema.yaml"
TEMPLATE = Path(__file__).with_name("job_template.json")
LARGEST_IMAGE = 128
VALIDATED_FROM = 20
"""Datasets with at least this number of episodes are validated on a twentieth of them."""
_FRAME_INCHES, _FONT = 1.9, 9


def write(
    source: Source,
    episodes: Sequence[Episode],
    report: dict[str, Any],
    fit: schemas.Fit | None,
    output: Path,
) -> dict[str, Any]:
    """Write the drafts into the folder `output`, and return what they add to the report. fit: of
    the package's schema that fits. A schema in the folder has precedence, since the user may have
    edited it. Raises DataError, and OSError where something cannot be written.
    """
    file, notes, written = output.absolute() / SCHEMA, {}, [output / SHEET]
    output.mkdir(parents=True, exist_ok=True)
    _draw(source, episodes, output / SHEET)
    is_edited = file.exists()
    if fit is None and not is_edited:
        _replace(file, schemas.draft(source))
        written.append(output / SCHEMA)
    if fit is None or is_edited:
        fit = schemas.fit_of(source, load_schema(str(file)))
    if is_edited:  # raises the same errors as training
        find_fields(source.features, str(source.folder), (), (), (), fit.schema)
        notes = {"schema": str(file), "left_out": fit.missing}
    if fit.fits:
        config = _config(source, fit, report["cameras"], output.absolute())
        _replace(output / CONFIG, json.dumps(config, indent=4) + "\n")
        written.append(output / CONFIG)
        word = shlex.quote(f"load_from={(output / CONFIG).absolute()}")
        command = f"torchrun --nproc_per_node=N -m robomimic.scripts.train_rlds {word}"
        notes["next"] = f"train on N GPUs, in the folder of the edited host: `{command}`"
    else:
        missing = "observation" if fit.available["actions"] else "action"
        notes["next"] = (
            f"next: {output / SCHEMA} names no {missing} for a policy, so {CONFIG} was not "
            "written: name it there, then run inspect-data again"
        )
    return {**notes, "written": [str(path) for path in written]}


def _replace(file: Path, text: str) -> None:
    """Write a file; an existing file with another content is renamed to `.old`."""
    with suppress(FileNotFoundError):
        if files.read_bytes(file) != text.encode():
            file.replace(file.with_name(file.name + ".old"))
    with atomic_open(file, encoding="utf-8") as opened:
        opened.write(text)


def _config(
    source: Source, fit: schemas.Fit, sizes: dict[str, dict[str, int | None]], output: Path
) -> dict[str, Any]:
    """Return the config for train_rlds's load_from. sizes: height and width of each camera."""
    config = files.read_json(TEMPLATE)
    name, actions = source.folder.parent.name, fit.suggested("actions")
    config["experiment"].update(name=name, validate=sum(source.episodes_per_file) >= VALIDATED_FROM)
    config["train"].update(
        data_path=str(source.folder.absolute().parent.parent),
        dataset_names=[name],
        rlds_schema=fit.schema.name,
        output_dir=str(output / "runs"),
        action_keys=actions,
        action_config={key: {"normalization": "min_max"} for key in actions},
    )
    observation, cameras = config["observation"], fit.suggested("cameras")
    observation["modalities"]["obs"] = {"low_dim": fit.suggested("states"), "rgb": cameras}
    features = [fit.schema.cameras[key].feature.replace(".", "/") for key in cameras]
    height, width = (
        min([LARGEST_IMAGE, *(sizes[feature][side] or LARGEST_IMAGE for feature in features)])
        for side in ("height", "width")
    )
    if source.prepared:
        height, width = source.prepared["size"]
    observation["image_dim"] = [height, width]
    observation["encoder"]["rgb"]["obs_randomizer_kwargs"].update(
        crop_height=max(1, height * 9 // 10), crop_width=max(1, width * 9 // 10)
    )
    return config


def _draw(source: Source, episodes: Sequence[Episode], path: Path) -> None:
    """Draw the contact sheet, which has a row of frames for each camera of the first episodes.
    Raises DataError without matplotlib.
    """
    plt = figures.pyplot()
    rows = [*_rows(episodes)]
    height, width = rows[0][1][0][1].shape[:2] if rows else (1, 1)
    row_inches, count = _FRAME_INCHES * min(1.5, height / width) + 0.5, max(1, len(rows))
    size = (_FRAME_INCHES * SHEET_FRAMES + 0.4, row_inches * count + 0.6)
    figure = plt.figure(figsize=size, layout="constrained")
    title = "the first episodes that were read" if rows else "no colour images"
    figure.suptitle(f"{source.name}: {title}")
    for row, (text, frames) in zip(figure.subfigures(count, squeeze=False)[:, 0], rows):
        row.suptitle(text, x=0, ha="left", fontsize=_FONT, weight="bold")
        for axis, (step, frame) in zip(row.subplots(1, SHEET_FRAMES), frames):
            axis.imshow(frame)
            axis.set_title(f"step {step}", fontsize=_FONT, loc="left")
    for axis in figure.axes:
        axis.set_axis_off()
    figures.save(figure, str(path))


def _rows(episodes: Sequence[Episode]) -> Iterator[tuple[str, list]]:
    """Yield the title and the frames of each row; an episode's first title has its instruction."""
    for number, episode in enumerate(episodes):
        instruction = f": {episode.texts[0]}" if any(episode.texts[:1]) else ""
        for camera, frames in episode.frames.items():
            yield f"episode {number}, {camera.rpartition('/')[2]}{instruction}", frames
            instruction = ""
