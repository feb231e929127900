"""The fixers that put one decorator on one function or class at the top level of a host's file."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, decorate, settle
from robomimic_ddp.patches.hosts import READS_RLDS
from robomimic_ddp.patches.outcomes import AlreadyApplied, Applied, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source

LOGS, TRAINING, FILES = "utils/log_utils.py", "utils/train_utils.py", "utils/file_utils.py"


def _decorator(
    files: str, seam: str, target: str, api: str, what: str, required: bool = True
) -> Fixer:
    """`@DDPUtils.<api>` on `target` ("def name" or "class name"); `what` describes the target.

    Seams of RLDS are left alone in hosts of the DROID family, which read RLDS datasets themselves.
    """
    word, name = target.split()
    function, _, arguments = api.rstrip(")").partition("(")

    def fix(source: Source) -> Outcome:
        if seam == "RLDS" and READS_RLDS in source.traits:
            return NotPresent("the host reads RLDS datasets itself")
        kind = cst.ClassDef if word == "class" else cst.FunctionDef
        return decorate(source, name, function, arguments, kind)

    return Fixer(
        seam=seam,
        files=(files,),
        words=(target if word == "class" else f"{target}(",),
        fix=fix,
        by_hand=f"decorate the {what} with @DDPUtils.{api}",
        required=required,
    )


def _epoch_logs(source: Source) -> Outcome:
    """`@DDPUtils.epoch_log` on `run_epoch` and on a host's further kinds of it (`run_epoch_mt`)."""
    top = (node for node in source.module.body if isinstance(node, cst.FunctionDef))
    names = [node.name.value for node in top if node.name.value.startswith("run_epoch")]
    outcomes = [decorate(source, name, "epoch_log") for name in dict.fromkeys(names)]
    edits = [edit for one in outcomes if isinstance(one, Applied) for edit in one.edits]
    done = [node for one in outcomes if isinstance(one, AlreadyApplied) for node in one.nodes]
    return settle(edits, done, "no function run_epoch at top level")


FIXERS = {
    # TensorBoard and wandb are the main rank's.
    "data_logger": _decorator(
        LOGS,
        "loggers",
        "class DataLogger",
        "data_logger",
        "class that writes TensorBoard and wandb",
        required=False,
    ),
    # One clear error for the whole job, and a non-zero exit.
    "entry_point": _decorator(
        *TRAIN_SCRIPTS,
        "errors",
        "def main",
        "entry_point(api_version=1)",
        "function that the script runs",
    ),
    # The log that it returns is the mean over all ranks' samples.
    "epoch_log": Fixer(
        seam="step log",
        files=(TRAINING,),
        words=("def run_epoch",),
        fix=_epoch_logs,
        by_hand="decorate the function that runs an epoch and returns its log with "
        "@DDPUtils.epoch_log",
    ),
    # The text log is the main rank's; the others keep their warnings and errors.
    "print_logger": _decorator(
        LOGS,
        "loggers",
        "class PrintLogger",
        "print_logger",
        "class that copies stdout into log.txt",
        required=False,
    ),
    # RLDS datasets when train.data_format is the RLDS one.
    "rlds_datasets": _decorator(
        TRAINING,
        "RLDS",
        "def load_data_for_training",
        "rlds_datasets",
        "function that makes the training and validation datasets",
        required=False,
    ),
    # These two answer for the folder of an RLDS dataset too.
    "rlds_env_metadata": _decorator(
        FILES,
        "RLDS",
        "def get_env_metadata_from_dataset",
        "rlds_env_metadata",
        "function that reads a dataset's environment metadata",
        required=False,
    ),
    "rlds_shape_metadata": _decorator(
        FILES,
        "RLDS",
        "def get_shape_metadata_from_dataset",
        "rlds_shape_metadata",
        "function that reads a dataset's shapes",
        required=False,
    ),
    # Video on the main rank only; every rank sees the same statistics.
    "rollouts": _decorator(
        TRAINING,
        "rollouts",
        "def rollout_with_stats",
        "rollouts",
        "function that runs the rollouts",
        required=False,
    ),
    # The main rank makes the run's folders, and every rank gets the same paths.
    "run_directory": _decorator(
        TRAINING,
        "run directory",
        "def get_exp_dir",
        "run_directory",
        "function that makes the run's folders",
    ),
    # Checkpoints are written by the main rank only.
    "save_model": _decorator(
        TRAINING,
        "checkpoints",
        "def save_model",
        "main_rank_only",
        "function that writes checkpoints",
    ),
}
