"""`robomimic-ddp stats`: computes and prints the statistics of a config's RLDS data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import env, options
from robomimic_ddp.config.json_config import read_json
from robomimic_ddp.config.rlds_keys import DATA_FORMAT
from robomimic_ddp.data.array_cache import DEFAULT_CACHE
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.statistics import QUANTILE_STEPS, Index
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.quiet_streams import quiet_stdout
from robomimic_ddp.errors import EXIT_DONE, ConfigError
from robomimic_ddp.terminal import say, table, width

QUANTILES = (0.01, 0.5, 0.99)
_HOST_DEFAULTS = {
    "frame_stack": 1,
    "seq_length": 1,
    "pad_frame_stack": True,
    "pad_seq_length": True,
    "action_keys": [],
    "action_config": {},
}
_COLUMNS = ("min", "1 %", "50 %", "99 %", "max", "mean", "std")


class _Section(dict):
    """A dict with attribute access, as hosts' configs."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the command's arguments."""
    parser.add_argument("path", help="a training config in JSON with train.data_format=droid_rlds")
    parser.add_argument("--data-path", help="the folder of the datasets; default train.data_path")
    parser.add_argument(
        "--cache", help=f"where to keep the index; default train.data_cache_dir, or {DEFAULT_CACHE}"
    )


def run(command: str, args: argparse.Namespace) -> int:
    """Collective: makes the index of the config's dataset, if it is not cached; the main rank
    prints its statistics.

    Raises ConfigError, DataError.
    """
    config, keys = training_config(args.path, data_path=args.data_path, data_cache_dir=args.cache)
    launch = env.read_launch_env()
    given = options.resolve({}, launch.option_texts, config.get("ddp") or {}).values
    ranks = group.process_group("gloo", given.timeout, launch.restart_count)
    skip = given.skip_corrupt  # it has another index
    with ranks if launch.world_size > 1 else nullcontext(), quiet_stdout(launch.rank > 0):
        for source, fields, index, kept in host_datasets.indices_from_config(config, keys, skip):
            found = f"{len(source.files)} files, {len(index.length)} episodes"
            steps = int(index.length[kept].sum())
            say(f"{source.folder}: {found}, {len(kept)} of them used with {steps} steps")
            print("\n".join(table([*_rows(fields, index, kept)], width())))
        say(f"quantiles: of {QUANTILE_STEPS} steps spread evenly over each episode")
    return EXIT_DONE


def training_config(path: str, **changes: Any) -> tuple[Any, list[str]]:
    """The config of a run on RLDS data, in JSON, with `changes` of its section `train` (None: as it
    is), and its observation keys. Raises ConfigError.
    """
    config = _sections(read_json(path, ""))
    train = config.setdefault("train", _Section())
    train.update({key: value for key, value in changes.items() if value is not None})
    _require_rlds(config, path)
    obs = config.observation.modalities.obs
    for key, value in _HOST_DEFAULTS.items():
        train.setdefault(key, value)
    obs.setdefault("rgb", [])
    return config, sorted({*obs.rgb, *obs.get("low_dim", ())})


def _sections(value: Any) -> Any:
    if isinstance(value, dict):
        return _Section({key: _sections(entry) for key, entry in value.items()})
    return value


def _require_rlds(config: _Section, path: str) -> None:
    found = config.train.get("data_format")
    if found != DATA_FORMAT:
        raise ConfigError(
            f"{path}: train.data_format={found!r}; statistics are computed ahead for RLDS data "
            f"({DATA_FORMAT!r}) only."
        )
    for place in ("observation", "modalities", "obs"):
        config = config.get(place)
        if not isinstance(config, dict):
            raise ConfigError(
                f"{Path(path).name} has no observation.modalities.obs: the keys decide what is "
                "read. Give the config that training gets."
            )


def _rows(fields: Any, index: Index, kept: np.ndarray) -> Iterator[tuple[str, ...]]:
    merged = index.actions.merged(index.length, kept)
    low, middle, high = index.action_quantiles(kept, QUANTILES)
    std = np.sqrt(merged["sqdiff"][0] / merged["n"])
    ends = (merged["min"][0], low, middle, high, merged["max"][0], merged["mean"][0], std)
    names = [
        key.removeprefix("action/") + (f"[{place}]" if part.size > 1 else "")
        for key, part in fields.actions.items()
        for place in range(part.size)
    ]
    yield ("action", *(f"{column:>7}" for column in _COLUMNS))
    for name, *numbers in zip(names, *ends):
        yield (name, *(f"{number:7.4f}" for number in numbers))
