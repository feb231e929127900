"""Decorators on one function or class at the top level of a host's file."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import decorate, definition, unrecognised
from robomimic_ddp.patches.host.hosts import READS_RLDS, TRAIN_SCRIPTS
from robomimic_ddp.patches.host.training_files import ROLLOUTS, acts
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.source import Source, walk

LOGS, TRAINING, FILES = ("utils/log_utils.py",), ("utils/train_utils.py",), ("utils/file_utils.py",)
REQUIRED = {"entry_point", "run_directory", "save_model"}


def _decorator(
    name: str, seam: str, files: tuple[str, ...], target: str, what: str, decorator: str = ""
) -> Fixer:
    """`@DDPUtils.<decorator>` on `target` ("def name" or "class name"), which `what` describes.
    Hosts with traits READS_RLDS keep their own seams of RLDS.
    """
    decorator = decorator or name

    def find(source: Source, module: cst.Module) -> Iterator[Found]:
        if seam == "RLDS" and READS_RLDS in source.traits:
            yield NotPresent("the host reads RLDS datasets itself")
        node = definition(source, target)
        if node is not None:
            yield decorate(source, node, decorator)

    return Fixer(
        seam,
        files,
        find,
        f"decorate the {what} with @DDPUtils.{decorator}",
        words=(target if target.startswith("class") else f"{target}(",),
        missing=f"no {target.replace('def ', 'function ')} at top level",
        required=name in REQUIRED,
    )


def _on_train(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    params = train.params
    every = (*params.posonly_params, *params.params, *params.kwonly_params)
    names = [param.name.value for param in every]
    if names[:2] != ["config", "device"]:
        why = f"{train.name.value}({', '.join(names)}) was expected to begin with (config, device)"
        yield unrecognised(source, train, why)
    yield decorate(source, train, "distributed")


def _on_rollouts(source: Source, module: cst.Module) -> Iterator[Found]:
    """On `rollout_with_stats`, on a host's further kinds of it (`icl_rollout_with_stats`), and on
    each function that a training function calls to act: it has a policy.
    """
    named = {node.name.value: node for node in module.body if isinstance(node, cst.FunctionDef)}
    for name, node in named.items():
        parameters = {param.name.value for param in walk(node.params, cst.Param)}
        is_called = name in source.called or name.endswith(ROLLOUTS)
        if is_called and acts(name, parameters):
            yield decorate(source, node, "rollouts")


def _on_epochs(source: Source, module: cst.Module) -> Iterator[Found]:
    """On `run_epoch` and on a host's further kinds of it (`run_epoch_mt`)."""
    named = {node.name.value: node for node in module.body if isinstance(node, cst.FunctionDef)}
    for name, node in named.items():
        if name.startswith("run_epoch"):
            yield decorate(source, node, "epoch_log")


ROWS = {
    # One clear error for the whole job, and a non-zero exit.
    "entry_point": (
        *("errors", TRAIN_SCRIPTS, "def main"),
        *("function that the script runs", "entry_point(api_version=1)"),
    ),
    # TensorBoard, wandb and the text log are the main rank's; others keep warnings and errors.
    "data_logger": ("loggers", LOGS, "class DataLogger", "class that writes TensorBoard and wandb"),
    "print_logger": ("loggers", LOGS, "class PrintLogger", "class that copies stdout into log.txt"),
    # RLDS datasets when train.data_format is the RLDS one.
    "rlds_datasets": (
        *("RLDS", TRAINING, "def load_data_for_training"),
        "function that makes the training and validation datasets",
    ),
    # These two answer for the folder of an RLDS dataset too.
    "rlds_env_metadata": (
        *("RLDS", FILES, "def get_env_metadata_from_dataset"),
        "function that reads a dataset's environment metadata",
    ),
    "rlds_shape_metadata": (
        *("RLDS", FILES, "def get_shape_metadata_from_dataset"),
        "function that reads a dataset's shapes",
    ),
    # The main rank makes the run's folders, and every rank gets the same paths.
    "run_directory": (
        "run directory",
        TRAINING,
        "def get_exp_dir",
        "function that makes the run's folders",
    ),
    # Checkpoints are written by the main rank only.
    "save_model": (
        *("checkpoints", TRAINING, "def save_model"),
        *("function that writes checkpoints", "main_rank_only"),
    ),
}

FIXERS = {
    **{name: _decorator(name, *row) for name, row in ROWS.items()},
    # Plan, process group, quiet other ranks, clean end.
    "distributed": Fixer(
        "process group",
        TRAIN_SCRIPTS,
        _on_train,
        "decorate the function train(config, device, ...) with @DDPUtils.distributed",
        within="def train",
        required=True,
    ),
    # Video on the main rank only; every rank sees the same statistics.
    "rollouts": Fixer(
        "rollouts",
        TRAINING,
        _on_rollouts,
        "decorate the function that runs the rollouts with @DDPUtils.rollouts",
        words=("rollout",),
        missing="no function runs rollouts",
        note="episodes are split over the ranks; rank 0 plays all of them if the function has no "
        "envs and num_episodes, or experiment.rollout.batched is true",
    ),
    # The log that it returns is the mean over all ranks' samples.
    "epoch_log": Fixer(
        "step log",
        TRAINING,
        _on_epochs,
        "decorate the function that runs an epoch and returns its log with @DDPUtils.epoch_log",
        words=("def run_epoch",),
        missing="no function run_epoch at top level",
        required=True,
    ),
}
