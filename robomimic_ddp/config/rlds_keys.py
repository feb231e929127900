"""The configuration keys of RLDS data, with their defaults. Imports nothing, so that any layer may
read it.

Names and meanings are the DROID codebase's where it has them; hosts that lock their configs get
them declared.
"""

from __future__ import annotations

DATA_FORMAT = "droid_rlds"
"""The value of train.data_format that selects this reader."""

IMAGE_FILTERS = ("lanczos3", "bilinear", "bilinear_antialias")
"""How images are resized (see `pipeline.resize`). lanczos3: antialiased, as dlimp's; bilinear: the
2 x 2 pixels around each sample, whatever the factor; bilinear_antialias: its triangle widened by
the factor.
"""
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
    "observation.image_filter": "lanczos3",
}
"""Dotted config key -> default.

shuffle_buffer_size: windows in the job's shuffle buffers, divided over the ranks. subsample_length:
most windows that an episode gives to a pass (None: all), spread over it. num_parallel_calls:
decoding threads of this process, never more than its CPU cores; the two traj_*_threads and
action_shapes are accepted for DROID's configs and not needed. dataset_version: the newest where
None. rlds_schema: what the datasets hold under which names: "droid", "bridge", or the path of a
YAML file; a list gives one to each dataset. data_cache_dir: where indices are kept (None:
~/.cache/robomimic_ddp/rlds). success_only: keep episodes that pass the schema's `success` (DROID:
/success/ in their file_path), in datasets that record it. skip_unlabeled: drop episodes without a
language instruction, in datasets that have one. validation_fraction: share of episodes kept for
validation when experiment.validate is true. image_dim: height and width of delivered pictures.
image_filter: one of IMAGE_FILTERS.
"""
