"""The real octo and dlimp, called as the users of DROID's policy learning code call them. Neither
comes with this package: `bench data --octo` needs both where Python finds them.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from robomimic_ddp.bench.data_set import CAMERAS, STATES, DataJob, open_dataset
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.rlds.actions import action_vectors
from robomimic_ddp.rlds.schema import flat_features
from robomimic_ddp.rlds.tf_import import import_tensorflow

FILTER = "lanczos3"
"""The one that dlimp resizes by."""
_MOST_WINDOWS = 100
_NAMES = ("primary", "secondary")


def require() -> None:
    """Raises ConfigError where a package is missing."""
    missing = [name for name in ("octo", "dlimp") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--octo: Python does not find {' and '.join(missing)}. Put checkouts of octo (commit "
            "85b83fc, which DROID's code pins) and of dlimp on PYTHONPATH, or leave --octo out."
        )


def succeeded(episode: dict[str, Any]) -> Any:
    """TensorFlow: whether an episode of octo's is kept."""
    path = episode["traj_metadata"]["episode_metadata"]["file_path"][0]
    return import_tensorflow().strings.regex_full_match(path, ".*/success/.*")


def octo_samples(job: DataJob) -> Any:
    """tf.data of single samples without end, in the form of `data_host.host_samples`."""
    from octo.data.dataset import make_dataset_from_rlds, make_interleaved_dataset
    from octo.data.utils.data_utils import combine_dataset_statistics
    from octo.utils.spec import ModuleSpec

    fields = open_dataset(job).fields

    def with_actions(episode: dict[str, Any]) -> dict[str, Any]:
        return {**episode, "action": action_vectors(flat_features(episode), fields.actions)}

    leaves = [place.rpartition("/")[2] for place in fields.images.values()]
    whole, threads = [True] * fields.action_size, job.threads
    data = {
        "name": job.path.parent.name,
        "data_dir": str(job.path.parent.parent),
        "filter_functions": [ModuleSpec.create(f"{__name__}:{succeeded.__name__}")],
        "image_obs_keys": dict(zip(_NAMES, leaves)),
        "state_obs_keys": [fields.low_dim[key].source.rpartition("/")[2] for key in STATES],
        "language_key": fields.language,
        "norm_skip_keys": ["proprio"],
        "action_proprio_normalization_type": "bounds",
        "absolute_action_mask": whole,
        "action_normalization_mask": whole,
        "standardize_fn": with_actions,
    }
    statistics = combine_dataset_statistics([make_dataset_from_rlds(**data, train=True)[1]])
    samples = make_interleaved_dataset(
        [data],
        [1.0],
        train=True,
        shuffle_buffer_size=job.buffer,
        dataset_statistics=statistics,
        traj_transform_kwargs={
            "window_size": job.frame_stack,
            "future_action_window_size": job.seq_length - 1,
            "subsample_length": _MOST_WINDOWS,
            "skip_unlabeled": True,
        },
        frame_transform_kwargs={
            "resize_size": {name: tuple(job.target) for name in _NAMES},
            "num_parallel_calls": threads,
        },
        traj_transform_threads=threads,
        traj_read_threads=threads,
    )
    return samples.map(lambda one: _as_host_takes_it(one, job), num_parallel_calls=threads)


def _as_host_takes_it(sample: dict[str, Any], job: DataJob) -> dict[str, Any]:
    tf, obs = import_tensorflow(), sample["observation"]
    pictures = {key: obs[f"image_{name}"] for key, name in zip(CAMERAS, _NAMES)}
    taken = {key: tf.cast(picture, tf.float32) / 255.0 for key, picture in pictures.items()}
    taken[STATES[0]], taken[STATES[1]] = obs["proprio"][..., :6], obs["proprio"][..., -1:]
    taken["pad_mask"] = obs["pad_mask"][:, None]
    taken["language"] = sample["task"]["language_instruction"]
    return {"obs": taken, "actions": sample["action"][job.frame_stack - 1 :]}
