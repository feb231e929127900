"""Reports on the data of a job as training reads it: for RLDS data, the index and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from robomimic_ddp.commands.inspect_data import hdf5
from robomimic_ddp.config import launch_env, paths
from robomimic_ddp.config.host import host_config
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index.statistics import Index
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.quiet_streams import quiet_stdout


def show(path: str, print_report: Callable[[Any], None]) -> None:
    """Collective: call `print_report` with the reports of all datasets in the config at `path`.
    Makes the index of RLDS data if it is not in the config's folder. Only the main rank prints.
    Raises ConfigError, DataError.
    """
    launch = launch_env.read_launch_env()
    config, resolved = host_config.config_of_job(path, environment=launch.option_texts)
    values = resolved.values
    ranks = group.process_group("gloo", values.timeout, launch.attempt)
    with ranks if launch.world_size > 1 else nullcontext(), quiet_stdout(launch.rank > 0):
        if host_config.format_is_rlds(config):
            indices = host_datasets.indices_from_config(
                config, config.all_obs_keys, values.skip_corrupt
            )
            print_report([_report(*indexed) for indexed in indices])
        else:
            entries = hdf5_validate.entries(config.train.data)
            print_report([hdf5.report_of(paths.expanded(entry["path"])) for entry in entries])


def _report(source: Any, fields: Any, index: Index, rows: np.ndarray) -> dict[str, Any]:
    """Return the counts and statistics of a dataset; rows: the episodes that training uses."""
    used = index.select(rows)
    return {
        "kind": "statistics",
        "path": str(source.folder),
        "files": len(source.files),
        "episodes": len(index.length),
        "used": len(rows),
        "steps": int(used.length.sum()),
        "actions": _actions(fields.actions, used),
    }


def _actions(specs: Mapping, index: Index) -> dict[str, dict[str, float]]:
    """Return the statistics of each action dimension."""
    merged = index.actions.merged(index.length)
    columns = {
        "min": merged["min"][0],
        "max": merged["max"][0],
        "mean": merged["mean"][0],
        "std": np.sqrt(merged["sqdiff"][0] / merged["n"]),
    }
    names = [
        key.removeprefix("action/") + (f"[{number}]" if spec.size > 1 else "")
        for key, spec in specs.items()
        for number in range(spec.size)
    ]
    dimensions = np.stack([*columns.values()], 1).tolist()
    return {name: dict(zip(columns, values)) for name, values in zip(names, dimensions)}
