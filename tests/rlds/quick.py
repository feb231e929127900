"""The made-up dataset without a host's config, for subprocesses and ranks of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.build import make_index
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.statistics import Index
from robomimic_ddp.data.rlds.schema.fields import Fields, find_fields
from robomimic_ddp.data.rlds.schema.spec import load_schema
from tests.rlds.conftest import ACTIONS, CAMERAS, HEIGHT, STATES, WIDTH
from tests.section import Section


def source_and_fields(folder: Path) -> tuple[Source, Fields]:
    """What the index of the made-up data in `folder` is made from."""
    source = Source(folder)
    return source, find_fields(
        source.features, "x", CAMERAS + STATES, CAMERAS, ACTIONS, load_schema()
    )


def index_of(
    source: Source,
    fields: Fields,
    files: Sequence[int] | None = None,
    add: Callable[[int], Any] = lambda count: None,
) -> Index:
    """The index of the `files` of `source`, or of all; add: takes the bytes that were read."""
    files = range(len(source.files)) if files is None else files
    return make_index(source, fields, files, threads=2, skip_corrupt=False, add=add)


def quick_dataset(folder: Path, index: str, **options: Any) -> Any:
    """Collective: the train dataset of the made-up data in `folder`, one camera and one state.
    options: of `datasets_from_config`.
    """
    train = Section(
        data_path=str(folder.parent.parent),
        dataset_names=[folder.parent.name],
        data_cache_dir=index,
        action_keys=list(ACTIONS),
        action_config={key: {"normalization": "min_max"} for key in ACTIONS},
        frame_stack=2,
        seq_length=16,
        pad_frame_stack=True,
        pad_seq_length=True,
        batch_size=4,
    )
    modalities = Section(obs=Section(rgb=[CAMERAS[0]], low_dim=[STATES[0]]))
    observation = Section(image_dim=[HEIGHT, WIDTH], modalities=modalities)
    config = Section(train=train, observation=observation, experiment=Section(validate=False))
    return host_datasets.datasets_from_config(config, [CAMERAS[0], STATES[0]], **options)[0]


def same(one: Index, two: Index) -> bool:
    """Whether two indices have the same bits."""
    flat = [
        [value for name, value in sorted(vars(index).items()) if isinstance(value, np.ndarray)]
        + [value for kind in (index.actions, index.states) for value in vars(kind).values()]
        for index in (one, two)
    ]
    assert len(flat[0]) == len(flat[1]) == 15
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*flat))
