"""Makes or finds the run directory, once for all ranks."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp import checkpoint
from robomimic_ddp.config import env, launch_env
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.distributed import entry_point, group, main_rank, watchdog
from robomimic_ddp.errors import WriteError
from robomimic_ddp.training import run as _run
from robomimic_ddp.training import run_inputs, session
from robomimic_ddp.training.state import resume

_NAMES_TRIED = 5


def run_directory(get_exp_dir: Callable) -> Callable:
    """Collective: decorates `get_exp_dir`: called once, on the main rank; the same paths, or error,
    on all ranks. A resumed run gets its previous paths, without prompts or removal, and its state.

    Raises CheckpointError if another job trains in the directory; a new run takes the next name.
    """

    @functools.wraps(get_exp_dir)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        launch = launch_env.read_launch_env()
        if not group.is_initialized():
            host_edits.require_one_rank(get_exp_dir.__name__, sys._getframe(1).f_code)
        watchdog.reached("run directory")

        run, make_paths = _run.current(), functools.partial(get_exp_dir, *args, **kwargs)

        def make() -> Any:
            if run is None:
                return make_paths()
            if run.resume.source is None:
                paths, directory = _new_directory(run, make_paths)
            else:
                paths, directory = _found_directory(run, make_paths)
            resume.remember_config(run, directory)
            names = checkpoint.relative_paths(directory, paths)
            place = {"job": checkpoint.job_name(launch), "launcher": env.launcher(), "paths": names}
            run.begin_record(directory, {**place, "resume": resume.command()})
            return paths

        paths = main_rank.on_main(make)
        if run is not None:
            directory = run_inputs.common_directory(paths)
            run.output.start_heartbeat(directory, run.plan)
            resume.saved_state(run)  # after the lock: no other job writes it
        return paths

    wrapped.is_run_directory = True  # how `begin_run` recognises a patched host
    return wrapped


def begin_run(get_exp_dir: Callable) -> Callable:
    """Collective: wraps `get_exp_dir` where the host's `main()` calls it, before `train()`: the run
    begins here, and `train()` takes it over.
    """

    @functools.wraps(get_exp_dir)
    def wrapped(config: Any, *args: Any, **kwargs: Any) -> Any:
        if launch_env.read_launch_env().world_size > 1:
            host_edits.require_patched_directory(get_exp_dir)
        use_cuda = bool(config.train.cuda) and torch.cuda.is_available()
        requested = kwargs.get("resume")
        begun = session.begun(config, use_cuda, requested, isinstance(requested, bool))
        with ExitStack() as unless_it_begins:
            run = unless_it_begins.enter_context(begun)
            with entry_point.at_once(run.output.end):
                run_inputs.check_inputs(run, run.resume.by_host)
                paths = get_exp_dir(config, *args, **kwargs)
            run.begun_in_main = unless_it_begins.pop_all()
        return paths

    return wrapped


def _new_directory(run: _run.Run, make_paths: Callable) -> tuple[Any, Path]:
    """Main rank: return the host's paths and their folder, used by this run only. Names are times
    in seconds: of two runs that start in the same second one takes the next. Raises WriteError if
    all names are taken.
    """
    reason = None
    for _ in range(_NAMES_TRIED):
        try:
            paths = make_paths()
            directory = run_inputs.common_directory(paths)
            run.undo.enter_context(checkpoint.take(directory))
            return paths, directory
        except (FileExistsError, checkpoint.DirectoryInUse) as error:
            reason = error
            time.sleep(1.0 - time.time() % 1.0)
    raise WriteError(
        f"no directory can be made for this run: {reason}. Hosts name it by the time, in seconds, "
        f"and {_NAMES_TRIED} of these names were taken. Start again, or give the run another "
        "experiment.name."
    ) from reason


def _found_directory(run: _run.Run, make_paths: Callable) -> tuple[Any, Path]:
    """Main rank: return the paths of the resumed run, and their folder."""
    if run.resume.source.kind == "host":
        paths = make_paths()
        directory = run_inputs.common_directory(paths)
    else:
        directory = run.resume.source.directory
        paths = run.resume.source.paths
        if not paths or None in paths:  # where the host has none (saving is off), or a damaged file
            paths = _paths_as_made(run, directory, make_paths)
    run.undo.enter_context(checkpoint.take(directory))
    for path in filter(None, paths):
        try:
            Path(path).mkdir(exist_ok=True)
        except OSError as error:
            raise WriteError(
                f"{path} cannot be used as a folder of the resumed run: {error}. The run keeps its "
                "logs and checkpoints in such folders. Move away what has this name (for a link, "
                "mount the disk that it leads to), or free disk space, then resume again."
            ) from error
    return paths, directory


def _paths_as_made(run: _run.Run, directory: Path, make_paths: Callable) -> tuple:
    """Return the paths in a `directory` whose `ddp.json` does not name them, as hosts make them."""
    train = run.config.train
    before = train.output_dir
    with tempfile.TemporaryDirectory() as elsewhere, run.config.values_unlocked():
        try:
            train.output_dir = elsewhere
            paths = make_paths()
        finally:
            train.output_dir = before
        names = checkpoint.relative_paths(run_inputs.common_directory(paths), paths)
    return tuple(None if name is None else os.path.normpath(directory / name) for name in names)
