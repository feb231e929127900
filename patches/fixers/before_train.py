"""What a script does before `train()`, as IsaacLab's does: it starts a simulator, and its `main()`
makes the run directory and writes files there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from robomimic_ddp.patches.edits import (
    argument,
    calls,
    decorate,
    definition,
    extended,
    keyword,
    last_names,
    run_epoch_calls,
    text_of,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.fixers.main_rank import FILE_OPERATIONS
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

OPENS = ("builtins.open", "h5py.File")


def _directory_calls(source: Source, main: cst.FunctionDef) -> list[cst.Call]:
    """Calls of `get_exp_dir` in `main`, edited or not."""
    return [
        call
        for call in walk(main, cst.Call)
        if "get_exp_dir" in last_names(source, call) or _is_beginning(source, call)
    ]


def _is_beginning(source: Source, call: cst.Call) -> bool:
    return isinstance(call.func, cst.Call) and source.is_api(call.func, "begin_run")


def _beginning(source: Source, main: cst.FunctionDef) -> Iterator[Found]:
    """`get_exp_dir(config)` becomes `DDPUtils.begin_run(get_exp_dir)(config)`."""
    for call in _directory_calls(source, main):
        is_done = _is_beginning(source, call)
        yield call if is_done else wrap(source, call.func, "begin_run")


def _writers(source: Source, main: cst.FunctionDef) -> Iterator[Found]:
    """`@DDPUtils.once` on each function of the file that `main` calls and that writes files."""
    begun = [source.line(call) for call in _directory_calls(source, main)]
    seen = set()
    for call in walk(main, cst.Call):
        function = definition(source, f"def {dotted(call.func)}") if dotted(call.func) else None
        if not begun or function is None or not _writes(source, function):
            continue
        if any(run_epoch_calls(function)):  # the training function, whose files have edits
            continue
        if source.line(call) < begun[0]:
            why = f"{function.name.value} writes files before the ranks have met in begin_run"
            yield unrecognised(source, call, why)
        if function not in seen:
            seen.add(function)
            yield decorate(source, function, "once")


def _writes(source: Source, function: cst.FunctionDef) -> bool:
    if any(calls(source, function, "shutil.copyfile", *FILE_OPERATIONS)):
        return True
    opened = calls(source, function, *OPENS)
    return any(set(text_of(argument(call, 1, "mode"))) & set("wax+") for call in opened)


def _simulators(source: Source, module: cst.Module) -> Iterator[Found]:
    """`AppLauncher(headless=True)` becomes `AppLauncher(headless=True, distributed=True)`: IsaacLab
    then puts each rank's simulator on that rank's GPU.
    """
    for call in walk(module, cst.Call):
        if not any(name.endswith(".app.AppLauncher") for name in source.names(call.func)):
            continue
        if argument(call, 99, "distributed") is not None:
            if source.api_import is None:
                yield NotPresent("the host starts it for each rank", (source.line(call),))
            yield call
        elif any(arg.keyword is None for arg in call.args):
            why = (
                "the simulator takes parsed arguments: start the script with --distributed, if it "
                "has that flag, so that each rank's simulator uses that rank's GPU"
            )
            yield unrecognised(source, call, why, blocks=False)
        else:
            yield Edit(call, partial(extended, arguments=[keyword("distributed", "True")]))


FIXERS = {
    # The ranks must have met before one of them makes the folders.
    "begin_run": Fixer(
        "run directory",
        TRAIN_SCRIPTS,
        _beginning,
        "write log_dir, ... = DDPUtils.begin_run(TrainUtils.get_exp_dir)(config) in main()",
        within="def main",
        words=("def main(", "get_exp_dir"),
        done=("begin_run",),
        missing="main() makes no run directory",
    ),
    # A dataset that is copied and rewritten.
    "once": Fixer(
        "files",
        TRAIN_SCRIPTS,
        _writers,
        "decorate the function with @DDPUtils.once and call it after get_exp_dir",
        within="def main",
        words=("def main(", "get_exp_dir"),
        missing="main() makes no run directory, or calls no function that writes files after it",
    ),
    # Each process starts one; otherwise all of them on the first GPU.
    "simulator": Fixer(
        "simulator",
        TRAIN_SCRIPTS,
        _simulators,
        "write AppLauncher(..., distributed=True)",
        words=("AppLauncher(",),
        missing="no simulator is started",
        absent="no simulator is started",
        note="one starts on each rank, on its GPU: each rank reads the task's config from it",
    ),
}
