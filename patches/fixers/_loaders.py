"""The DataLoaders that `train()` makes, told apart by the names around them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import (
    api_calls,
    argument,
    calls,
    rename,
    settle,
    train_function,
    unrecognised,
)
from robomimic_ddp.patches.outcomes import NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

DATA_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
VALID = re.compile(r"(^|_)(valid|val(_|set|$)|eval|test)", re.IGNORECASE)
TRAIN = re.compile(r"(^|_)train", re.IGNORECASE)


def fix_loaders(source: Source, purpose: str) -> Outcome:
    """DataLoader calls for `purpose` ("train" or "valid") go to `DDPUtils.<purpose>_loader`."""
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    edits = []
    for call, found in _loaders(source, train):
        if found == purpose:
            edits.append(rename(source, call, f"{purpose}_loader"))
        elif not found and purpose == "train":
            return unrecognised(
                source, call, "is this DataLoader for training or validation? Its names do not say"
            )
    done = api_calls(source, train, f"{purpose}_loader")
    return settle(edits, done, f"train() makes no DataLoader for {purpose} data")


def _loaders(source: Source, train: cst.FunctionDef) -> Iterator[tuple[cst.Call, str]]:
    """Each DataLoader call with "train", "valid", or "" where the names contradict or do not tell.

    The variable it is assigned to decides; then the dataset.
    """
    variables = {}
    for assign in walk(train, cst.Assign):
        for call in calls(source, assign.value, *DATA_LOADER):
            variables[call] = _purpose(target.target for target in assign.targets)
    for call in calls(source, train, *DATA_LOADER):
        dataset = argument(call, 0, "dataset")
        yield call, variables.get(call) or (_purpose([dataset]) if dataset is not None else "")


def _purpose(nodes: Iterator[cst.CSTNode]) -> str:
    names = [name.value for node in nodes for name in walk(node, cst.Name)]
    is_valid, is_train = any(map(VALID.search, names)), any(map(TRAIN.search, names))
    return "" if is_valid == is_train else "valid" if is_valid else "train"
