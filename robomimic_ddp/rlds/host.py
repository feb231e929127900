"""What the seams in an edited host ask for: metadata, configuration entries, the datasets of a
training run.

Nothing here imports the host at module level; its `ObsUtils` are read where they are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.errors import ConfigError, DataError
from robomimic_ddp.rlds import settings
from robomimic_ddp.rlds.dataset import LoadOptions, RLDSDataset
from robomimic_ddp.rlds.index_cache import load_index
from robomimic_ddp.rlds.pictures import PictureSize
from robomimic_ddp.rlds.schema import DROID_OBSERVATIONS, Fields, find_fields, flat_features
from robomimic_ddp.rlds.selection import kept_episodes, split_validation
from robomimic_ddp.rlds.settings import setting
from robomimic_ddp.rlds.source import Source, find_dataset, is_rlds_folder
from robomimic_ddp.rlds.statistics import Index
from robomimic_ddp.rlds.windows import WindowShape

__all__ = [
    "dataset_configs",
    "datasets_from_config",
    "env_metadata",
    "indices_from_config",
    "is_rlds_folder",
    "shape_metadata",
]

GYM_TYPE = 2
"""robomimic.envs.env_base.EnvType.GYM_TYPE: a data set names no simulator, and this type asks for
none.
"""
_ROUNDING = 1e-4
LANGUAGE_EMBEDDING_KEY = "lang_emb"


def dataset_configs(config: Any) -> list[dict[str, Any]]:
    """The entries of `config.train.data`, one per data set: path, weight, image_dim. Raises
    DataError, ConfigError.

    Reads folder names only.
    """
    names = settings.dataset_names(config)
    if len(names) != 1:
        raise ConfigError(
            f"train.dataset_names={names}: this version reads one RLDS data set at a time; "
            "mixtures by train.sample_weights are not there yet. Name one."
        )
    settings.check(config)
    path = find_dataset(
        setting(config, "train.data_path") or "", names[0], setting(config, "train.dataset_version")
    )
    return [{"path": str(path), "weight": 1.0, "image_dim": settings.image_dim(config)}]


def env_metadata(path: str) -> dict[str, Any]:
    """What the host's get_env_metadata_from_dataset returns, for the RLDS folder `path`."""
    folder = Path(path).expanduser()
    return {"env_name": folder.parent.name, "type": GYM_TYPE, "env_kwargs": {}}


def shape_metadata(
    dataset_config: dict[str, Any],
    action_keys: Sequence[str],
    all_obs_keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What the host's get_shape_metadata_from_dataset returns, for an entry of `dataset_configs`.

    Needs the host's ObsUtils initialised. Reads metadata only, so each rank may call it alone.
    Raises DataError.
    """
    import robomimic.utils.obs_utils as ObsUtils

    source = Source(Path(dataset_config["path"]).expanduser())
    if all_obs_keys is None:
        held = flat_features(source.features["steps"].feature)
        all_obs_keys = [key for key, place in DROID_OBSERVATIONS.items() if place in held]
    image_keys = [key for key in all_obs_keys if ObsUtils.OBS_KEYS_TO_MODALITIES[key] == "rgb"]
    fields = _fields(source, all_obs_keys, image_keys, action_keys)
    shapes = OrderedDict()
    for key in sorted(all_obs_keys):
        raw = (
            (*dataset_config["image_dim"], 3)
            if key in fields.images
            else fields.low_dim_shapes[key]
        )
        shapes[key] = ObsUtils.get_processed_shape(ObsUtils.OBS_KEYS_TO_MODALITIES[key], raw)
    return {
        "ac_dim": fields.action_size,
        "all_shapes": shapes,
        "all_obs_keys": all_obs_keys,
        "use_images": bool(image_keys),
        "use_depths": ObsUtils.has_modality("depth", all_obs_keys),
    }


def datasets_from_config(
    config: Any, obs_keys: Sequence[str]
) -> tuple[RLDSDataset, RLDSDataset | None]:
    """Collective: the train data set, and with experiment.validate the validation one, of `config`.

    Together the ranks read the data set once for its index, unless the main rank finds it cached;
    an error of one is raised on all. Raises DataError, ConfigError.
    """
    (entry,) = dataset_configs(config)
    train = config.train
    ((source, fields, index, kept),) = indices_from_config(config, obs_keys)
    shape = _window_shape(train)
    options = LoadOptions(
        int(setting(config, "train.shuffle_buffer_size")),
        setting(config, "train.subsample_length"),
        setting(config, "train.num_parallel_calls"),
        int(train.batch_size),
    )
    size = PictureSize(*entry["image_dim"], bool(setting(config, "observation.image_antialias")))

    def dataset(rows: np.ndarray, role: str) -> RLDSDataset:
        return RLDSDataset(
            source, fields, index, rows, kept, shape, size, train.action_config, options, role
        )

    if config.get("algo_name") == "diffusion_policy":
        _require_range(dataset(kept, "train"))
    if not config.experiment.validate:
        return dataset(kept, "train"), None
    fraction = float(setting(config, "train.validation_fraction"))
    train_rows, valid_rows = split_validation(index, kept, fraction, str(source.folder))
    return dataset(train_rows, "train"), dataset(valid_rows, "valid")


def indices_from_config(
    config: Any, obs_keys: Sequence[str]
) -> Iterator[tuple[Source, Fields, Index, np.ndarray]]:
    """Collective: of each data set of `config` its files, places, index, and the rows of episodes
    that pass the filters. Raises DataError, ConfigError.
    """
    train = config.train
    image_keys = [key for key in config.observation.modalities.obs.rgb if key in obs_keys]
    for entry in dataset_configs(config):
        source = Source(Path(entry["path"]))
        fields = _fields(source, obs_keys, image_keys, train.action_keys)
        index = load_index(source, fields, setting(config, "train.data_cache_dir"))
        kept = kept_episodes(
            index,
            _window_shape(train).count(index.length),
            bool(setting(config, "train.success_only")) and fields.has_file_path,
            bool(setting(config, "train.skip_unlabeled")) and fields.language is not None,
            str(source.folder),
        )
        yield source, fields, index, kept


def _window_shape(train: Any) -> WindowShape:
    return WindowShape(
        train.frame_stack, train.seq_length, train.pad_frame_stack, train.pad_seq_length
    )


def _require_range(dataset: RLDSDataset) -> None:
    """Raises DataError for normalised actions beyond [-1, 1]: the diffusion policy refuses them."""
    normalization = dataset.get_action_normalization_stats()
    for key, stats in dataset.get_action_stats().items():
        scale, offset = normalization[key]["scale"], normalization[key]["offset"]
        low = float(((stats["min"] - offset) / scale).min())
        high = float(((stats["max"] - offset) / scale).max())
        if low < -1 - _ROUNDING or high > 1 + _ROUNDING:
            raise DataError(
                f"{dataset.source.folder}: after normalisation the action {key!r} reaches from "
                f"{low:g} to {high:g}, and the diffusion policy needs it within [-1, 1]. Set "
                f'train.action_config[{key!r}].normalization to "min_max".'
            )


def _fields(
    source: Source, obs_keys: Sequence[str], image_keys: Sequence[str], action_keys: Sequence[str]
) -> Fields:
    if LANGUAGE_EMBEDDING_KEY in obs_keys:
        raise ConfigError(
            f"observation key {LANGUAGE_EMBEDDING_KEY!r}: instructions of RLDS data are delivered "
            "as text (batch['language']), embeddings are not there yet. Take the key out of the "
            "config."
        )
    return find_fields(source.features, str(source.folder), obs_keys, image_keys, action_keys)
