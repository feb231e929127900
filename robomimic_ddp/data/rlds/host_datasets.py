"""What edited hosts call for RLDS data. The host is not imported at module level."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.data.array_cache import cache_folder
from robomimic_ddp.data.language.embeddings import Embeddings, make_embeddings
from robomimic_ddp.data.language.encoder import AUTO, MODELS, Encoder
from robomimic_ddp.data.rlds.dataset import LoadOptions, RLDSDataset
from robomimic_ddp.data.rlds.index.build import numbers_in_files
from robomimic_ddp.data.rlds.index.cache import load_index
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.splits import select_episodes, split_validation
from robomimic_ddp.data.rlds.index.statistics import Index
from robomimic_ddp.data.rlds.mixture_dataset import RLDSMixture
from robomimic_ddp.data.rlds.order.windows import WindowShape
from robomimic_ddp.data.rlds.schema import job_config
from robomimic_ddp.data.rlds.schema.fields import Fields, available_keys, find_fields
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs, setting
from robomimic_ddp.data.rlds.schema.spec import DEFAULT, Schema, load_schema
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError
from robomimic_ddp.terminal import print_clean

GYM_TYPE = 2
"""robomimic.envs.env_base.EnvType.GYM_TYPE, which needs no simulator."""
_ROUNDING = 1e-4


def env_metadata(path: str) -> dict[str, Any]:
    """Return the result of the host's get_env_metadata_from_dataset for the RLDS folder `path`."""
    folder = paths.expanded(path)
    return {"env_name": folder.parent.name, "type": GYM_TYPE, "env_kwargs": {}}


def shape_metadata(
    dataset_config: dict[str, Any],
    action_keys: Sequence[str],
    all_obs_keys: Sequence[str] | None = None,
    language_model: str = AUTO,
) -> dict[str, Any]:
    """Return the result of the host's get_shape_metadata_from_dataset for an entry of
    `dataset_configs`. The host's ObsUtils must be initialised. Not collective; reads metadata only.
    Raises DataError.
    """
    import robomimic.utils.obs_utils as ObsUtils

    path, schema = dataset_config["path"], load_schema(dataset_config.get("schema", DEFAULT))
    source = Source(paths.expanded(path))
    if all_obs_keys is None:
        all_obs_keys = available_keys(schema.observations, source.steps)
    image_keys = [key for key in all_obs_keys if ObsUtils.OBS_KEYS_TO_MODALITIES[key] == "rgb"]
    fields = _fields(source, schema, all_obs_keys, image_keys, action_keys)
    shapes = OrderedDict()
    for key in sorted(all_obs_keys):
        if key in MODELS:
            raw = (Encoder(language_model, key).width,)
        elif key in fields.images:
            raw = (*dataset_config["image_dim"], 3)
        else:
            raw = fields.low_dim_shapes[key]
        shapes[key] = ObsUtils.get_processed_shape(ObsUtils.OBS_KEYS_TO_MODALITIES[key], raw)
    return {
        "ac_dim": fields.action_size,
        "all_shapes": shapes,
        "all_obs_keys": all_obs_keys,
        "use_images": bool(image_keys),
        "use_depths": ObsUtils.has_modality("depth", all_obs_keys),
    }


def datasets_from_config(
    config: Any,
    obs_keys: Sequence[str],
    skip_corrupt: bool = False,
    language_model: str = AUTO,
    device: str = "cpu",
) -> tuple[RLDSDataset | RLDSMixture, RLDSDataset | RLDSMixture | None]:
    """Collective: return the train dataset of `config`, and its validation dataset or None.

    If the main rank has no cached index, the ranks share the reading of the datasets for it; an
    error of one is raised on all. skip_corrupt: count damaged episodes and leave them out.
    language_model: embeds the instructions on `device` if `obs_keys` name an embedding. Raises
    DataError, ConfigError.
    """
    entries, train = dataset_configs(config), config.train
    options = LoadOptions(
        int(setting(config, "train.shuffle_buffer_size")),
        setting(config, "train.subsample_length"),
        setting(config, "train.num_parallel_calls"),
        int(train.batch_size),
    )
    size = job_config.image_dim(config)

    def make(indexed: tuple, rows: np.ndarray, role: str) -> RLDSDataset:
        settings = (_window_shape(train), size, train.action_config, options, role)
        source, fields, index, all_rows = indexed
        return RLDSDataset(source, fields, index, rows, all_rows, *settings)

    indices = list(indices_from_config(config, obs_keys, skip_corrupt))
    _require_alike(indices)
    embeddings = _embeddings(config, indices, obs_keys, language_model, device)
    everything = [make(indexed, indexed[3], "train") for indexed in indices]
    if config.get("algo_name") == "diffusion_policy":
        _require_range(_together(everything, entries))
    if not config.experiment.validate:
        return _together(everything, entries, embeddings), None
    fraction = float(setting(config, "train.validation_fraction"))
    trained, valid = [], []
    for indexed in indices:
        source, _, index, all_rows = indexed
        numbers, where = numbers_in_files(index, source), str(source.folder)
        per_file = source.episodes_of_source
        rows = split_validation(index, all_rows, fraction, where, per_file, numbers)
        trained.append(make(indexed, rows[0], "train"))
        valid.append(make(indexed, rows[1], "valid"))
    return _together(trained, entries, embeddings), _together(valid, entries, embeddings)


def _embeddings(
    config: Any, indices: list[tuple], obs_keys: Sequence[str], model: str, device: str
) -> list[Embeddings]:
    """Collective: return the embeddings of all instructions, for each of `obs_keys` that is one."""
    keys = [key for key in obs_keys if key in MODELS]
    for source, fields, *_ in indices if keys else ():
        if fields.language is None:
            raise DataError(
                f"{source.folder} has no instructions, and the observation key {keys[0]!r} is "
                "their embedding. Take the key out of the config, or name the feature that has "
                "them as `language` in a schema of your own (train.rlds_schema)."
            )
    texts = [text for _, _, index, rows in indices if keys for text in index.instructions(rows)]
    cache = cache_folder(setting(config, "train.data_cache_dir"))
    return [make_embeddings(key, model, texts, cache, device) for key in keys]


def _together(
    datasets: list[RLDSDataset], entries: list[dict], embeddings: Sequence[Embeddings] = ()
) -> RLDSDataset | RLDSMixture:
    """Return one dataset unchanged, several as a mixture with shared statistics."""
    for dataset in datasets:
        dataset.normalised_with = datasets
        dataset.embeddings = embeddings
    if len(datasets) == 1:
        return datasets[0]
    return RLDSMixture(datasets, [entry["weight"] for entry in entries])


def _require_alike(indices: list[tuple[Source, Fields, Index, np.ndarray]]) -> None:
    """Raise DataError for datasets of a mixture whose states or actions differ in shape."""
    (first, wanted, *_), *others = indices
    for source, fields, *_ in others:
        sizes = [
            ({key: part.size for key, part in each.actions.items()}, dict(each.low_dim_shapes))
            for each in (wanted, fields)
        ]
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{source.folder} and {first.folder} cannot be mixed: their actions and states "
                f"have the sizes {sizes[1]} and {sizes[0]}. Take out the key that differs, or one "
                "of the datasets."
            )


def indices_from_config(
    config: Any, obs_keys: Sequence[str], skip_corrupt: bool = False
) -> Iterator[tuple[Source, Fields, Index, np.ndarray]]:
    """Collective: yield for each dataset of `config` its files, fields, index, and the rows of
    episodes that pass the filters; the main rank prints why others do not. Raises DataError,
    ConfigError.
    """
    train = config.train
    for entry in dataset_configs(config):
        source = Source(Path(entry["path"]), skip_missing=skip_corrupt)
        fields = _fields_of_run(config, source, entry["schema"], obs_keys)
        cache = setting(config, "train.data_cache_dir")
        index = load_index(source, fields, cache, skip_corrupt)
        needs_text = bool(index.labelled.any()) or any(key in MODELS for key in obs_keys)
        rows, left_out = select_episodes(
            index,
            _window_shape(train).count(index.length),
            bool(setting(config, "train.success_only")) and fields.success is not None,
            bool(setting(config, "train.skip_unlabeled")) and needs_text and bool(fields.language),
            str(source.folder),
            fields.filters,
            fields.success,
        )
        if left_out and group.is_main():
            count = f"{len(index.length) - len(rows)} of the {len(index.length)} episodes"
            text = f"note: {count} of {source.folder} are left out. {left_out}"
            print_clean(text, file=sys.stderr)
        yield source, fields, index, rows


def _fields_of_run(config: Any, source: Source, schema: str, obs_keys: Sequence[str]) -> Fields:
    image_keys = [key for key in config.observation.modalities.obs.rgb if key in obs_keys]
    return _fields(source, load_schema(schema), obs_keys, image_keys, config.train.action_keys)


def _window_shape(train: Any) -> WindowShape:
    return WindowShape(
        train.frame_stack, train.seq_length, train.pad_frame_stack, train.pad_seq_length
    )


def _require_range(dataset: RLDSDataset | RLDSMixture) -> None:
    """Raise DataError for normalised actions beyond [-1, 1]: the diffusion policy refuses them."""
    normalization = dataset.get_action_normalization_stats()
    for key, stats in dataset.get_action_stats().items():
        scale, offset = normalization[key]["scale"], normalization[key]["offset"]
        low = float(((stats["min"] - offset) / scale).min())
        high = float(((stats["max"] - offset) / scale).max())
        if low < -1 - _ROUNDING or high > 1 + _ROUNDING:
            raise DataError(
                f"{dataset.name}: after normalisation the action {key!r} ranges from "
                f"{low:g} to {high:g}, but the diffusion policy needs it within [-1, 1]. Set "
                f'train.action_config[{key!r}].normalization to "min_max".'
            )


def _fields(
    source: Source,
    schema: Schema,
    obs_keys: Sequence[str],
    image_keys: Sequence[str],
    action_keys: Sequence[str],
) -> Fields:
    """Return the fields of a dataset; embeddings of instructions have none. Cameras that
    `prepare-data` has dropped may be missing, unless the run asks for them.
    """
    where, obs_keys = str(source.folder), [key for key in obs_keys if key not in MODELS]
    dropped = {name.replace("/", ".") for name in (source.prepared or {}).get("dropped", ())}
    cameras = dict(schema.cameras)
    for key, entry in schema.cameras.items():
        if entry.feature.replace("/", ".") in dropped:
            cameras[key] = replace(entry, optional=True)
            if key in obs_keys:
                raise DataError(
                    f"{where} was prepared without the camera {key!r} ({entry.feature}). Prepare "
                    "the source again with it (robomimic-ddp prepare-data --cameras), or take it "
                    "out of the config."
                )
    schema = replace(schema, cameras=cameras)
    return find_fields(source.features, where, obs_keys, image_keys, action_keys, schema)
