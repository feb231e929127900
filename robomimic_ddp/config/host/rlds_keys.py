"""The config keys of RLDS data, with their defaults.

Names and meanings are those of the DROID codebase, if it has them. They are declared in hosts that
lock their configs.
"""

from __future__ import annotations

DATA_FORMAT = "droid_rlds"
"""The value of train.data_format that selects this reader."""

DEFAULT_CACHE = "~/.cache/robomimic_ddp/rlds"
"""The folder of the indices where train.data_cache_dir names none."""

DEFAULTS = {
    "train.data_format": "robomimic",
    "train.data_path": "",
    "train.dataset_names": [""],
    "train.sample_weights": [1.0],
    "train.shuffle_buffer_size": 100_000,
    "train.subsample_length": None,
    "train.num_parallel_calls": None,
    "train.traj_transform_threads": None,
    "train.traj_read_threads": None,
    "train.action_shapes": None,
    "train.dataset_version": None,
    "train.rlds_schema": "droid",
    "train.data_cache_dir": None,
    "train.success_only": True,
    "train.skip_unlabeled": True,
    "train.validation_fraction": 0.05,
    "observation.image_dim": [128, 128],
}
"""Dotted config key -> default.

shuffle_buffer_size: windows in the shuffle buffers of all ranks together. subsample_length: most
windows of an episode in a pass (None: all), spread over it. num_parallel_calls: decoding threads of
this process, at most its CPU cores; the two traj_*_threads and action_shapes are accepted for
DROID's configs and ignored. dataset_version: None for the newest. rlds_schema: "droid", "bridge",
or the path of a YAML file; a list has one for each dataset. data_cache_dir: folder of the indices
(None: ~/.cache/robomimic_ddp/rlds). success_only: keep episodes that pass the schema's `success`
(DROID: /success/ in their file_path), in datasets that record it. skip_unlabeled: drop episodes
without a language instruction, in datasets where some have one. validation_fraction: share of
episodes for validation if experiment.validate is true. image_dim: height and width of images.
"""
