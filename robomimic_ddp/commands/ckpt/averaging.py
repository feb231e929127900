"""The mean of several checkpoints of one run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp.checkpoint import safe_load
from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.config import tree
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.terminal import warn

_DEFINING = re.compile(
    r"algo_name$|(algo|observation)\.|train\.(?!(output_dir|data_cache_dir|num_epochs|"
    r"batch_size|num_data_workers|hdf5_cache_mode|hdf5_use_swmr|num_parallel_calls|cuda)$)"
)
"""Settings that all checkpoints of a run have in common, even after it was resumed."""
_FOLDERS = re.compile(r'(?<=")[^"]*/(?=[^"/])')
_MOVABLE = {
    "train.data": _FOLDERS,
    "train.rlds_schema": _FOLDERS,
    "train.data_path": re.compile(r'(?<=").*(?=")'),
}
"""Settings with paths -> what of them may differ, with a warning: data may have moved."""


def averaged(checkpoints: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return the newest checkpoint with the mean of all checkpoints' nets and averages, computed in
    float64, and without optimizers. Tensors that are not floating point are those of the first.
    `contents.MEAN_OF` has the epochs of all. Raises CheckpointError, with file and key, if they do
    not match.
    """
    if len(checkpoints) == 1:
        return checkpoints[0]
    for name, content in zip(names[1:], checkpoints[1:]):
        _require_one_run(checkpoints[0], content, f"{name} and {names[0]}")
    all_sections = [contents.sections_of(content["model"]) for content in checkpoints]
    mean: dict[str, Any] = {}
    for section, first in all_sections[0].items():
        for name, sections in zip(names[1:], all_sections[1:]):
            _require_alike(first, sections.get(section), f"{name} and {names[0]}: {section}")
        for name, tensors in zip(names, all_sections):
            _require_finite(tensors[section], f"{name}: {section}")
        mean[section] = _mean([tensors[section] for tensors in all_sections])
    epochs = []
    for name, content in zip(names, checkpoints):
        try:
            epochs.append(contents.saved_epoch(content, Path(name).name))
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}; expected a whole number.") from None
    newest = checkpoints[epochs.index(max(epochs))]
    return {**newest, "model": mean, contents.MEAN_OF: epochs}


def _mean(sections: list[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    means: dict[tuple, torch.Tensor] = {}  # by memory: what has two names stays one tensor
    result = {}
    for key, first in sections[0].items():
        tensors = [section[key] for section in sections]
        place = tuple((tensor.data_ptr(), tensor.shape) for tensor in tensors)
        if place not in means and first.is_floating_point():
            first = torch.stack(tensors).double().mean(0).to(first.dtype)
        result[key] = means.setdefault(place, first)
    return result


def _require_finite(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    broken = [key for key, value in tensors.items() if not safe_load.is_finite(value).all()]
    if broken:
        raise CheckpointError(
            f"{where} contains NaN or infinity in {len(broken)} tensor(s), such as {broken[0]}, "
            "and so would the mean. Leave this checkpoint out."
        )


def _require_one_run(first: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError, with the first difference, for checkpoints of different trainings, and
    warn where only the folder of the data differs.
    """
    settings, others = _settings(first), _settings(other)
    for key in sorted({*settings, *others}) if settings and others else ():
        values = [values.get(key, "nothing") for values in (others, settings)]
        folders = _MOVABLE.get(key)
        names = [folders.sub("", value) if folders else value for value in values]
        if names[0] != names[1]:
            raise CheckpointError(
                f"{where} are of different trainings: {key} is {values[0][:80]} and "
                f"{values[1][:80]}. Average checkpoints of one run."
            )
        if values[0] != values[1]:
            warn(
                f"{where}: {key} is {values[0][:80]} and {values[1][:80]}. Their mean acts well "
                "only if that is the same data, in another folder"
            )


def _settings(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that determine the weights, as JSON; {} if there is no config."""
    if "ddp_state" in content:
        saved = tree.at(content, "ddp_state.defines.config")
        settings = dict(saved) if isinstance(saved, dict) else {}
    elif "config" in content:
        named = tree.named({**contents.config(content), "algo_name": content.get("algo_name")})
        settings = {key: json.dumps(value, default=str, sort_keys=True) for key, value in named}
    else:
        settings = {}
    return {key: value for key, value in settings.items() if _DEFINING.match(key)}


def _require_alike(first: Mapping, other: Mapping | None, where: str) -> None:
    kinds, others = (
        {key: (tensor.shape, tensor.is_floating_point()) for key, tensor in tensors.items()}
        for tensors in (first, other or {})
    )
    unlike = sorted({key for key, _ in kinds.items() ^ others.items()})
    if unlike:
        raise CheckpointError(
            f"{where} differ in {len(unlike)} tensor(s), such as {unlike[0]}: only checkpoints of "
            "the same nets in the same layout can be averaged."
        )
