"""Checks a run's config against what is on the disk, and finds its RLDS datasets and folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp.checkpoint import host_checkpoint, safe_load
from robomimic_ddp.config import paths
from robomimic_ddp.config.host.host_config import (
    OUR_KEY,
    ROBOMIMIC_FORMAT,
    format_is_rlds,
    trains_by_own_pipeline,
    uses_rlds,
)
from robomimic_ddp.config.host.rlds_keys import DATA_FORMAT
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.distributed import main_rank
from robomimic_ddp.errors import ConfigError


@contextmanager
def checked(run: Any, host_resumes: bool) -> Iterator[None]:
    """Collective: checks the data and the checkpoint that the host of `run` is about to read, and
    for the block reads checkpoints on the CPU; one that does not fit the model is an error that
    says so. host_resumes: the host reads its last.pth, and not experiment.ckpt_path.
    """
    config, trusts = run.config, run.options.trust_checkpoint
    fill_rlds_data(config)
    check_inputs(run, host_resumes)
    if run.plan.several_ranks and trains_by_own_pipeline(config):
        from robomimic_ddp.data.rlds import octo_statistics

        run.undo.enter_context(octo_statistics.computed_once())
    package = type(config).__module__.partition(".")[0]
    ckpt_path = config.experiment.get("ckpt_path", None)
    untrusted = None if trusts else ckpt_path
    reads = host_checkpoint.read_on_cpu(package, untrusted, before=run.output.writer.flush)
    run.built.checkpoints = run.undo.enter_context(reads)
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        unfit = safe_load.does_not_fit(ckpt_path, error)
        if unfit is None:
            raise
        raise unfit from error


def fill_rlds_data(config: Any) -> None:
    """Collective: for an RLDS run, lists the dataset folders in `train.data`, which hosts iterate
    over. For a host's RLDS pipeline only checks that the datasets exist. Raises DataError.
    """
    if not uses_rlds(config):
        if format_is_rlds(config):
            from robomimic_ddp.data.rlds import tfds_sharding

            places = config.train.data_path, config.train.dataset_names
            main_rank.on_main(tfds_sharding.require_datasets, *places)
        return
    from robomimic_ddp.data.rlds import host_datasets

    with config.values_unlocked():
        config.train.data = main_rank.on_main(host_datasets.dataset_configs, config)


def check_inputs(run: Any, host_resumes: bool) -> None:
    """Collective: the main rank validates the HDF5 datasets and the checkpoint of `run`, before
    anything is created. Raises DataError, ConfigError or CheckpointError on all ranks.

    host_resumes: experiment.ckpt_path is not read again.
    """
    main_rank.on_main(_check_inputs, run, host_resumes)


def _check_inputs(run: Any, host_resumes: bool) -> None:
    config, done = run.config, run.built.checked
    _check_output(config)
    data_format = config.train.get("data_format", ROBOMIMIC_FORMAT)
    formats = (ROBOMIMIC_FORMAT, DATA_FORMAT)
    if OUR_KEY in config.train and data_format not in formats:
        raise ConfigError(
            f"train.data_format={data_format!r}: expected {' or '.join(map(repr, formats))} (HDF5 "
            "or RLDS; this host knows no other)."
        )
    # Where the host's main() begins the run, train() comes here again, perhaps with other data.
    data = str(config.train.get("data", None))
    if data_format == ROBOMIMIC_FORMAT and data not in done:
        hdf5_validate.check(config)
        done.add(data)
    path = config.experiment.get("ckpt_path", None)
    if path is not None and not host_resumes and path not in done:
        safe_load.check(path, config.algo_name, run.options.trust_checkpoint)
        done.add(path)


def _check_output(config: Any) -> None:
    """Raises ConfigError if no run directory can be created."""
    output, name = config.train.get("output_dir", None), config.experiment.name
    reason = None if output is None else paths.why_not_writable(os.path.join(output, name))
    if reason is not None:
        raise ConfigError(
            f"train.output_dir={str(output)[:200]!r}, experiment.name={str(name)[:200]!r}: "
            f"{reason}, so no run directory can be made there. Name a folder that you may write "
            "to; it is made if need be."
        )


def common_directory(paths: Any) -> Path:
    """Return the run directory: the deepest common folder of the paths of `get_exp_dir`."""
    return Path(os.path.commonpath([os.fspath(path) for path in paths if path is not None]))


def experiment_directory(config: Any) -> Path:
    """Return the folder of this experiment's runs, perhaps relative to the host's package."""
    output = Path(os.path.expanduser(config.train.output_dir))
    if not output.is_absolute():
        import robomimic

        output = Path(robomimic.__path__[0]) / output
    return output / config.experiment.name
