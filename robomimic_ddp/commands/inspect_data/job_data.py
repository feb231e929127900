"""The data of a job as its training reads it: of RLDS data the index and statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from robomimic_ddp.commands.inspect_data import hdf5
from robomimic_ddp.config import env, host_keys, options, paths
from robomimic_ddp.config.json_config import read_json
from robomimic_ddp.config.rlds_keys import DATA_FORMAT
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.statistics import Index
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.quiet_streams import quiet_stdout
from robomimic_ddp.errors import ConfigError

_QUANTILES = {"1 %": 0.01, "50 %": 0.5, "99 %": 0.99}
_HOST_DEFAULTS = {
    "frame_stack": 1,
    "seq_length": 1,
    "pad_frame_stack": True,
    "pad_seq_length": True,
    "action_keys": [],
    "action_config": {},
}


class _Section(dict):
    """A dict with attribute access, as hosts' configs."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


def show(path: str, cache: str | None, print_report: Callable[[Any], None]) -> None:
    """Collective: give `print_report` a report of each dataset of the job's config at `path`. Makes
    the index of RLDS data, if it is not cached in `cache` (None: the config's). Only the main rank
    prints. Raises ConfigError, DataError.
    """
    config = _read(path)
    launch = env.read_launch_env()
    values = options.resolve({}, launch.option_texts, config.get("ddp") or {}).values
    ranks = group.process_group("gloo", values.timeout, launch.restart_count)
    with ranks if launch.world_size > 1 else nullcontext(), quiet_stdout(launch.rank > 0):
        if config.train.get("data_format") == DATA_FORMAT:
            indices = host_datasets.indices_from_config(
                *rlds_config(path, cache), values.skip_corrupt
            )
            print_report([_report(*indexed) for indexed in indices])
        else:
            entries = hdf5_validate.entries(config.train.get("data"))
            print_report([hdf5.report_of(paths.expanded(entry["path"])) for entry in entries])


def rlds_config(path: str, cache: str | None = None) -> tuple[Any, list[str]]:
    """Return the JSON config of a run on RLDS data as training sees it, its index in `cache` if
    given, and its observation keys. Raises ConfigError.
    """
    config = _read(path)
    data_format = config.train.get("data_format")
    if data_format != DATA_FORMAT:
        raise ConfigError(
            f"{path}: train.data_format={data_format!r}, and this is for RLDS data "
            f"({DATA_FORMAT!r}) only: give the config of a run on the dataset."
        )
    section: Any = config
    for name in ("observation", "modalities", "obs"):
        section = section.get(name)
        if not isinstance(section, dict):
            raise ConfigError(
                f"{path} has no observation.modalities.obs: the keys decide what is read. Give the "
                "config that training gets."
            )
    config["train"] = _Section(_HOST_DEFAULTS | config.train)
    if cache is not None:
        config.train["data_cache_dir"] = cache
    section.setdefault("rgb", [])
    return config, sorted({*section.rgb, *section.get("low_dim", ())})


def _read(path: str) -> Any:
    settings = read_json(path, "--config ")
    host_keys.require_possible_file(settings)
    return json.loads(json.dumps({"train": {}, **settings}), object_hook=_Section)


def _report(source: Any, fields: Any, index: Index, rows: np.ndarray) -> dict[str, Any]:
    """Return counts and statistics of a dataset, of whose episodes `rows` are used."""
    return {
        "kind": "statistics",
        "path": str(source.folder),
        "files": len(source.files),
        "episodes": len(index.length),
        "used": len(rows),
        "steps": int(index.length[rows].sum()),
        "actions": _actions(fields.actions, index, rows),
    }


def _actions(parts: Mapping, index: Index, rows: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the statistics of each dimension of the actions."""
    merged = index.actions.merged(index.length, rows)
    columns = {
        "min": merged["min"][0],
        **dict(zip(_QUANTILES, index.action_quantiles(rows, tuple(_QUANTILES.values())))),
        "max": merged["max"][0],
        "mean": merged["mean"][0],
        "std": np.sqrt(merged["sqdiff"][0] / merged["n"]),
    }
    names = [
        key.removeprefix("action/") + (f"[{number}]" if part.size > 1 else "")
        for key, part in parts.items()
        for number in range(part.size)
    ]
    dimensions = np.stack([*columns.values()], 1).tolist()
    return {name: dict(zip(columns, values)) for name, values in zip(names, dimensions)}
