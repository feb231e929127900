"""Drafts a complete training config: `job_template.json` with a dataset's folder, keys and image
size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.inspect_data.fitting import Fit
from robomimic_ddp.data.rlds.index.source import Source

TEMPLATE = Path(__file__).with_name("job_template.json")
LARGEST_IMAGE = 128
VALIDATED_FROM = 20
"""Least episodes of a dataset for validation on a twentieth of them."""


def config_of(
    source: Source, schema: str, fit: Fit, cameras: Mapping[str, Mapping], output: Path
) -> dict[str, Any]:
    """Return the config, for train_rlds's load_from; runs are written to `output`/runs. cameras: as
    in the report.
    """
    config = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    name, actions = source.folder.parent.name, fit.suggested("actions")
    config["experiment"].update(name=name, validate=sum(source.episodes_per_file) >= VALIDATED_FROM)
    config["train"].update(
        data_path=str(source.folder.absolute().parent.parent),
        dataset_names=[name],
        rlds_schema=schema,
        output_dir=str(output / "runs"),
        action_keys=actions,
        action_config={key: {"normalization": "min_max"} for key in actions},
    )
    observation = config["observation"]
    observation["modalities"]["obs"] = {
        "low_dim": fit.suggested("states"),
        "rgb": fit.suggested("cameras"),
    }
    height, width = observation["image_dim"] = _image_size(source, fit, cameras)
    observation["encoder"]["rgb"]["obs_randomizer_kwargs"].update(
        crop_height=max(1, height * 9 // 10), crop_width=max(1, width * 9 // 10)
    )
    if source.prepared:
        observation["image_filter"] = source.prepared["filter"]
    return config


def _image_size(source: Source, fit: Fit, cameras: Mapping[str, Mapping]) -> list[int]:
    """Height and width of delivered images: a prepared set's, else the smallest, at most 128."""
    if source.prepared:
        return source.prepared["size"]
    places = [fit.schema.cameras[key].feature.replace(".", "/") for key in fit.suggested("cameras")]
    return [
        min([LARGEST_IMAGE, *(cameras[place][side] or LARGEST_IMAGE for place in places)])
        for side in ("height", "width")
    ]
