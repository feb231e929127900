"""The data that `train()` reads: each rank takes its part, and validation counts a sample once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    argument,
    calls,
    names_in,
    rename,
    run_epoch_calls,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.source import Source, walk

DATA_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
VALID = re.compile(r"(^|_)(valid|val(_|set|$)|eval|test)", re.IGNORECASE)
TRAIN = re.compile(r"(^|_)train", re.IGNORECASE)
ADDS = ("add", "append", "extend", "insert", "setdefault", "update")
MAKER = "make_interleaved_dataset"
LIBRARIES = {"octo", "dlimp"}
"""One of these in the imported name: some hosts carry a copy, as in `mylab.octo.data.dataset`."""


def _loaders(purpose: str) -> Callable[[Source, cst.FunctionDef], Iterator[Found]]:
    """DataLoader calls for `purpose` ("train" or "valid", by the assigned variable, then the
    dataset) go to `DDPUtils.<purpose>_loader`.
    """

    def find(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
        targets: dict[cst.Call, list[cst.CSTNode]] = {}
        for assign in walk(train, cst.Assign):
            for call in calls(source, assign.value, *DATA_LOADER):
                targets[call] = [target.target for target in assign.targets]
        for call in calls(source, train, *DATA_LOADER):
            dataset, variables = argument(call, 0, "dataset"), targets.get(call, [])
            served = _purpose(variables) or _purpose([dataset] if dataset is not None else [])
            if not _purpose(variables) and variables and not _reaches_epochs(train, variables):
                continue  # of the same dataset, for something else, such as rollouts
            if served == purpose:
                yield rename(source, call, f"{purpose}_loader")
            elif not served and purpose == "train":
                why = "is this DataLoader for training or validation? Its names do not say"
                yield unrecognised(source, call, why)

    return find


def _reaches_epochs(train: cst.FunctionDef, variables: Iterable[cst.CSTNode]) -> bool:
    """Return whether one of `variables`, or what is made from it, is handed to `run_epoch`."""
    if not any(run_epoch_calls(train)):
        return True
    assigned = [
        (
            names_in(assign.value),
            names_in(*(target.target for target in assign.targets)),
        )
        for assign in walk(train, cst.Assign)
    ]
    assigned += [
        (names_in(*call.args), names_in(call.func.value))
        for call in walk(train, cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ADDS
    ]
    names, added = set(), names_in(*variables)
    while not added <= names:
        names |= added
        added = {name for of, to in assigned if of & names for name in to}
    return any(names & names_in(arg) for call in run_epoch_calls(train) for arg in call.args)


def _purpose(nodes: Iterable[cst.CSTNode]) -> str:
    """ "train", "valid", or "" where the names contradict or do not tell."""
    names = names_in(*nodes)
    is_valid, is_train = any(map(VALID.search, names)), any(map(TRAIN.search, names))
    return "" if is_valid == is_train else "valid" if is_valid else "train"


def _loader(purpose: str, required: bool) -> Fixer:
    return Fixer(
        f"{purpose} loader",
        TRAIN_SCRIPTS,
        _loaders(purpose),
        f"make the loader with DDPUtils.{purpose}_loader(...); it takes the same arguments",
        within="def train",
        done=(f"{purpose}_loader",),
        missing=f"train() makes no DataLoader for {purpose} data",
        required=required,
    )


def _pipelines(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`make_interleaved_dataset(` becomes `DDPUtils.sharded(make_interleaved_dataset)(`."""
    for call in walk(train, cst.Call):
        for name in source.names(call.func):
            *where, last = name.split(".")
            if last == MAKER and not LIBRARIES.isdisjoint(where):
                yield wrap(source, call.func, "sharded")
                break


FIXERS = {
    "train_loader": _loader("train", required=True),
    "valid_loader": _loader("valid", required=False),
    # Hosts with their own tf.data pipeline; whatever the host does with what it reads stays.
    "sharded_pipeline": Fixer(
        "RLDS",
        TRAIN_SCRIPTS,
        _pipelines,
        f"call DDPUtils.sharded({MAKER})(...) where the training dataset is made",
        within="def train",
        words=(MAKER,),
        done=("sharded",),
        missing=f"train() does not call octo's {MAKER}",
        note="each rank reads its share of the episodes, the same for the whole run; only "
        "robomimic-ddp's own loader draws it again for each pass and resumes at the exact place",
    ),
}
