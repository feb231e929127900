"""What defines a run: config, normalisation, data. Saved in the state, compared on resume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from robomimic_ddp import checkpoint
from robomimic_ddp.config import tree
from robomimic_ddp.distributed import rng
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.training import run as _run
from robomimic_ddp.verify import data_fingerprint as verify_data

_ITEMS = 8
"""Number of sampled items of the dataset, evenly spread."""
_TOLERANCE = 1e-3
"""Relative, of computed numbers: other machines sum in another order."""
_SHOWN = 80
_MEANING = ("train.action_keys", "train.action_config", "observation.modalities")
"""Config keys that change the meaning of the saved weights."""
_OF_NO_CONCERN = ("train.output_dir", "train.data_cache_dir", "experiment.ckpt_path")
"""Ignored: a run may move, and a resumed run does not read ckpt_path."""


class Difference(NamedTuple):
    """One line for the user; `wrong`: resuming would train a wrong policy."""

    text: str
    wrong: bool


def of(run: _run.Run, items: dict[str, torch.Tensor] | None) -> dict[str, Any]:
    """Local: return what defines the run, as plain values for the state. items: `items_of(run)`."""
    dataset = getattr(run.built.loaders.get("train"), "dataset", None)
    return {
        "config": {
            key: json.dumps(value, default=str, sort_keys=True)
            for key, value in tree.named(run.config)
            if key not in _OF_NO_CONCERN
        },
        "statistics": dict(_numbers(verify_data.statistics(dataset))),
        "data": {
            "samples": verify_data.length(dataset),
            "files": verify_data.fingerprint(dataset),
            "items": items,
        },
    }


def differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], run: _run.Run
) -> Iterator[Difference]:
    """Differences between the state `saved` and `now`, the current result of `of`."""
    now_options, before = asdict(run.options), saved["options"]
    for name in sorted(set(now_options) & set(before) - {"resume"}):
        if before[name] != checkpoint.plain(now_options[name]):
            yield Difference(f"ddp.{name}: {before[name]} -> {now_options[name]}", False)
    yield from _of_schedule(saved, run.plan)
    yield from _of_windows(saved, run.built.loaders.get("train"))
    before = saved["defines"]
    for key in sorted({*before["config"], *now["config"]}):
        old, new = (part["config"].get(key, "absent") for part in (before, now))
        if old != new:
            text = f"{key}: {old[:_SHOWN]} -> {new[:_SHOWN]}"
            yield Difference(text, key.startswith(_MEANING))
    yield from _of_numbers("normalisation", before["statistics"], now["statistics"], True)
    in_pass = _in_mid_pass(saved)
    where = ", in the middle of a pass" if in_pass else ""
    old, new = before["data"], now["data"]
    if old["samples"] != new["samples"]:
        yield Difference(f"data{where}: {old['samples']} -> {new['samples']} samples", in_pass)
    elif old["items"] and new["items"]:
        yield from _of_numbers(f"data{where}", old["items"], new["items"], in_pass)
    if old["files"] != new["files"]:
        yield Difference("data: the bytes of its files have changed", False)


def _of_schedule(saved: Mapping[str, Any], plan: Any) -> Iterator[Difference]:
    """Steps that stand for another number of samples: the learning rate would jump."""
    before, now = saved["options"]["schedule"], plan.schedule
    samples = saved["samples_per_step"], plan.samples_per_step
    if "samples" in (before, now) and (before != now or samples[0] != samples[1]):
        yield Difference(
            f"ddp.schedule={before} with {samples[0]} samples per step -> {now} with {samples[1]}: "
            "epochs and learning-rate schedules would change their length. Resume with the same "
            "option and the same number of samples per step (ranks x batch)",
            True,
        )


def _of_numbers(what: str, old: Mapping, new: Mapping, wrong: bool) -> Iterator[Difference]:
    """Yield a line for each name whose numbers (tensors, any shape) differ beyond rounding."""
    for name in sorted({*old, *new}):
        before, now = old.get(name), new.get(name)
        if before is None or now is None:
            change = "is new" if before is None else "is no longer there"
            yield Difference(f"{what}: {name} {change}", wrong)
        elif before.shape != now.shape:
            text = f"{what}: {name} has shape {list(before.shape)} -> {list(now.shape)}"
            yield Difference(text, wrong)
        else:
            apart = ~torch.isclose(before, now, rtol=_TOLERANCE, atol=1e-6, equal_nan=True)
            if apart.any():
                first, second = before[apart][0].item(), now[apart][0].item()
                yield Difference(f"{what}: {name}: {first:.6g} -> {second:.6g}", wrong)


def _of_windows(saved: Mapping[str, Any], loader: Any) -> Iterator[Difference]:
    """RLDS datasets whose pass is resumed in its middle with other windows, or another order."""
    before = _planned(saved["ranks"][0]["data"] or {})
    now = _planned(loader.position()) if before and hasattr(loader, "position") else {}
    for name in sorted(set(before) & set(now)):
        old, new = before[name], now[name]
        same = all(old[key] == new[key] for key in ("data", "seed"))
        if not same and old["inside"]:
            what = f"data {name.partition(' ')[2]}".strip()  # after its number in the mixture
            yield Difference(
                f"{what}, in the middle of a pass: other episodes, another choice of windows, or "
                "another train.seed",
                True,
            )


def _planned(place: Mapping[str, Any]) -> dict[str, Mapping]:
    """Return the position of each RLDS dataset, by its name in the mixture."""
    if place.get("kind") == "mixture":
        return {name: member for name, member in place["members"].items() if "data" in member}
    return {"": place} if place.get("kind") == "course" else {}


def _in_mid_pass(saved: Mapping[str, Any]) -> bool:
    """Return whether the next samples are the rest of a pass; for RLDS see `_of_windows`."""
    place = saved["ranks"][0]["data"] or {}
    began = {"pass": "samples", "replay": "batches"}.get(place.get("kind"))
    return began is not None and bool(place[began])


def _numbers(nest: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (dotted name, float64 tensor) of each numeric value of nested mappings."""
    for name, value in tree.named(nest) if isinstance(nest, Mapping) else [("", nest)]:
        with suppress(TypeError, ValueError):  # no numbers
            array = np.asarray(value)
            if value is not None and array.dtype.kind in "biuf":
                yield name, torch.from_numpy(np.array(array, dtype=np.float64))


class _Summaries(Dataset):
    """Mean and mean magnitude of the arrays of some items that are equal in two reads."""

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, tuple[float, float]]:
        index = self.indices[number]
        first, second = (dict(_numbers(self.dataset[index])) for _ in range(2))
        return {
            name: (value.mean().item(), value.abs().mean().item())
            for name, value in first.items()
            if value.numel() and name in second and torch.equal(value, second[name])
        }


def items_of(run: _run.Run) -> dict[str, torch.Tensor] | None:
    """Return name -> (mean, mean magnitude) over a fixed sample of train items; None for a dataset
    without indices, or if reading fails (training raises if it needs the item).

    Local, and called on every rank: some datasets compute and cache statistics at their first read.
    Reads in a worker process if the loader has any; restores the random streams.
    """
    loader = run.built.loaders.get("train")
    dataset = getattr(loader, "dataset", None)
    size = verify_data.length(dataset)
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    if not size or not indexed or hasattr(dataset, "is_rlds"):
        return None
    indices = sorted({number * (size - 1) // (_ITEMS - 1) for number in range(_ITEMS)})
    # As the host does: open files must not be forked.
    workers = min(1, getattr(loader, "num_workers", 0))
    try:
        with rng.kept():
            # Fixed streams, for datasets with random items.
            rng.seed(0)
            summaries = _Summaries(dataset, indices)
            read = list(DataLoader(summaries, batch_size=None, num_workers=workers))
    except Exception:
        return None
    files: dict[str, list] = {}
    for item in read:
        for name, pair in item.items():
            files.setdefault(name, []).append(pair)
    means = {name: np.mean(np.asarray(pairs, dtype=np.float64), 0) for name, pairs in files.items()}
    return {name: torch.from_numpy(mean) for name, mean in means.items()}


def another_run(directory: Path, differences: list[str]) -> CheckpointError:
    """Return the error where the saved weights would be trained on as something else."""
    lines = "".join(f"\n  {line}" for line in differences)
    return CheckpointError(
        f"the run in {directory} was another one:{lines}\nExpected the same normalisation, action "
        "and observation keys, and the same data where a pass is resumed in its middle: the saved "
        "weights mean nothing under others, and samples would be repeated and lost. To resume, "
        "give the run its own config and data (config.json there was left as it was). To train "
        f"these weights with the new settings, begin a new run: experiment.ckpt_path="
        f"{directory / 'last.pth'}, without resume."
    )
