"""Which run is resumed, its state, and what its user reads of it. The main rank reads.

`ddp_state.pth` is read alone. The main rank sends it tensor by tensor: nodes need not share a disk,
and all ranks resume from one file even where two nodes would see different ones.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp import checkpoint, files
from robomimic_ddp.checkpoint.torch_save import SaveError
from robomimic_ddp.config import env, launch_env, resume_command, tree
from robomimic_ddp.distributed import (
    atomic_files,
    entry_point,
    group,
    host_algo,
    main_rank,
    tree_collectives,
)
from robomimic_ddp.errors import CheckpointError, ConfigError, DataError, LaunchError, Stopped
from robomimic_ddp.monitoring.records import history, run_files
from robomimic_ddp.terminal import print_clean, warn
from robomimic_ddp.training import run as _run
from robomimic_ddp.training import run_inputs
from robomimic_ddp.training.step import schedule


def decide(config: Any, run: _run.Run, host_asked: bool, host_can: bool) -> None:
    """Collective: looks for the run to continue, where one is asked for (`ddp.resume`, the host's
    own flag), torchrun has restarted the ranks, or Slurm the job. What it finds is
    `run.resume.source`, and `run.resume.by_host` whether the host shall resume by itself: from its
    own checkpoint, in a directory without a state of ours. `ddp.resume=auto` finds a run that has
    begun and saved nothing, too, and None is not an error.

    `host_can`: its train() has a parameter `resume`. Raises CheckpointError where there is nothing
    to resume, and Stopped where torchrun restarts the ranks of a job that has stopped on request.
    """
    launch = launch_env.read_launch_env()
    option = run.options.resume
    required = option == "true" or host_asked
    asked = required or option == "auto"
    starts = group.gather_objects((launch.restart_count, launch.requeued, launch.elastic))
    restarts = run.resume.restarts = max(count for count, *_ in starts)
    requeued, elastic = (any(ranks) for ranks in list(zip(*starts))[1:])
    is_restart = restarts > 0 or requeued
    if not asked and not is_restart and not elastic:
        return

    def find() -> tuple[checkpoint.FoundRun | None, bool]:
        experiment = run_inputs.experiment_directory(config)
        previous, stopped = None, False
        if is_restart or elastic:
            # Nodes that join or leave make torchrun start the ranks again, and do not count.
            job = checkpoint.job_name(launch) if is_restart else None
            launcher = env.launcher() if elastic else None
            previous = checkpoint.find_job(experiment, job, launcher, finished=requeued)
        if previous is not None:
            stopped = _has_stopped(previous, restarts)
        elif asked:
            previous = checkpoint.find_run(experiment, host_can, required)
            stopped = previous is not None and restarts > 0 and _has_stopped(previous, restarts)
        if previous is None and is_restart:
            print_clean(f"restart: this job has no folder in {experiment} yet; a new run begins")
        elif previous is None and asked:
            print_clean(f"ddp.resume=auto: nothing to resume in {experiment}; a new run begins")
        elif previous is not None and not stopped:
            # A marker would keep torchrun from restarting a job that fails while it starts.
            forget_requeue(previous)
        return previous, stopped

    previous, stopped = main_rank.on_main(find)
    run.resume.source = previous
    if stopped:
        main_rank.say(
            "this job was stopped on request (requeue marker), so torchrun does not restart it"
        )
        group.leave()
        raise Stopped()
    run.resume.by_host = previous is not None and previous.kind == "host"
    if run.resume.by_host:
        main_rank.say(
            f"{previous.directory} has no {checkpoint.STATE} (it ended before its first epoch's "
            "was written, or the host wrote it alone): the host resumes from its last.pth, and "
            "random streams, the place in the data and best values start over"
        )


def _has_stopped(previous: checkpoint.FoundRun, restarts: int) -> bool:
    """Return whether the job of torchrun's `restarts` so far has stopped on request, and not since
    torchrun ended its ranks for nodes that join or leave, which it does not count.
    """
    try:
        marker = files.read_json(previous.directory / run_files.REQUEUE)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    before = marker.get("restarts") if isinstance(marker, dict) else None
    return not isinstance(before, int) or restarts > before


def require_decided(run: _run.Run, requested: bool) -> None:
    """Raise ConfigError where the host asks `train()` to resume a run that its `main()` has begun
    without that.
    """
    if requested and run.resume.source is None:
        raise ConfigError(
            "train() is asked to resume, but a new run's directory was made before it was called. "
            "Resume with ddp.resume=true (or ROBOMIMIC_DDP_RESUME=true) instead."
        )


@contextmanager
def hint_on_failure(run: _run.Run) -> Iterator[None]:
    """If the block fails, or torchrun is killed, after a state was saved, the main rank prints how
    to resume, unless torchrun starts the ranks again by itself, or the run refuses to resume.
    """
    try:
        with entry_point.if_launcher_dies(functools.partial(print_resume_command, run)):
            yield
    except Exception as error:
        if isinstance(error, SaveError) or not isinstance(error, (CheckpointError, Stopped)):
            print_resume_command(run)
        raise


def print_resume_command(run: _run.Run) -> None:
    """Main rank: prints how to resume a run that ends here, if it has saved a state, unless
    torchrun starts the ranks again by itself.
    """
    run.output.writer.flush(checkpoint.EXIT_SECONDS)
    launch, _ = _started_by()
    directory, restarts = run.output.directory, launch.elastic and not launch.shown_by_launcher
    if directory is not None and (directory / checkpoint.STATE).exists() and not restarts:
        print_clean(leave_note(directory), file=sys.stderr)


def leave_note(directory: Path) -> str:
    """Main rank: leaves to our launcher, and returns, how to resume the run in `directory`."""
    text = with_resume_command(f"the run in {directory} can be resumed from its last saved state")
    env.keep_resume_note(text)
    return text


def with_resume_command(what: str) -> str:
    """`what`, and the command that resumes this process's run."""
    return f"{what}. Resume with:\n  {command()}"


def command() -> str:
    """Return the command that resumes this process's run."""
    launch, words = _started_by()
    interpreter = sys.executable if env.missing_from_path("torchrun") else ""
    where = env.repeated_variables(), interpreter, env.working_folder()
    return resume_command.build(launch, words, *where)


def _started_by() -> tuple[launch_env.LaunchEnv, list[str]]:
    """Return the launch environment and the words that started this process, as far as known."""
    try:
        return launch_env.read_launch_env(), env.command_line()
    except LaunchError:  # somebody has changed the launcher's variables since
        return launch_env.LaunchEnv(), []


def forget_requeue(resumed: checkpoint.FoundRun) -> None:
    """Main rank: remove the marker of a run that is resumed."""
    try:
        (resumed.directory / run_files.REQUEUE).unlink(missing_ok=True)
    except OSError as error:
        warn(f"the requeue marker could not be removed: {error}")
    note_requeue("")


def note_requeue(text: str) -> None:
    """Main rank: says to this job's script, if it asks, where the marker is; "" for none."""
    try:
        env.keep_requeue_note(text)
    except OSError as error:
        warn(f"this job's script will not see whether the run has stopped: {error}")


def saved_state(run: _run.Run) -> dict[str, Any] | None:
    """Return the state to resume from, or None. What is as large as a net stays with the main rank,
    and is lent to the others. Collective the first time, which is where the host makes its run
    directory: by then no other job writes there.
    """
    resumed = run.resume
    if resumed.source is None or resumed.source.kind != "state":
        return None
    if resumed.saved is None:
        box: dict[str, Any] = {}

        def read() -> None:
            box["state"], notes = checkpoint.read(resumed.source.directory)
            for note in notes:
                warn(note)

        main_rank.on_main(read)
        state = box.get("state") or {}
        model = state.pop("model", None)
        resumed.saved = tree_collectives.broadcast(state)
        resumed.saved["model"] = tree_collectives.lent(model)
    return resumed.saved


def restored(name: str, default: Any) -> Any:
    """Return the value that the host's variable `name` had when the run was saved, or `default`.
    The name is remembered, so that its value is saved from now on. Collective only in a host that
    makes no run directory in its train(): the state is read here then.

    A dictionary gets the saved entries over its own.
    """
    run = _run.current()
    if run is None:
        return default
    run.resume.variables[name] = checkpoint.plain(default)
    saved = saved_state(run)
    if saved is None or name not in saved["best"]:
        return default
    value = saved["best"][name]
    if isinstance(default, dict) and isinstance(value, dict):
        return type(default)({**default, **value})
    return value


def trim_history(directory: Path, last_epoch: int) -> None:
    """Main rank: removes the lines of epochs that are trained again, and a last line cut off by a
    crash. A file that cannot be read or written stays as it is, with a warning: the state is good.
    """
    path = directory / history.FILE_NAME
    if not path.is_file():
        return
    try:
        records = history.read(directory)
        earlier = [record for record in records if (record["epoch"] or 0) <= last_epoch]
        with atomic_files.atomic_open(path, encoding="utf-8") as file:
            file.writelines(json.dumps(record, sort_keys=True) + "\n" for record in earlier)
    except (DataError, OSError, TypeError) as error:
        warn(
            f"{error}\nThe run continues; {history.FILE_NAME} keeps the lines of epochs "
            "that are trained again."
        )


def remember_config(run: _run.Run, directory: Path) -> None:
    """Main rank: reads the config.json in `directory`, before the host overwrites it."""
    with suppress(OSError):
        run.resume.config_before = files.read_bytes(directory / "config.json")


def put_config_back(run: _run.Run) -> None:
    """Main rank: writes config.json as it was before the host has overwritten it."""
    if run.resume.config_before is None:
        return
    path = run.output.directory / "config.json"
    try:
        with atomic_files.atomic_open(path, "wb") as file:
            file.write(run.resume.config_before)
    except OSError as error:
        warn(f"{path} could not be written: {error}")


def changes(run: Any, model: Any, saved: dict[str, Any], notes: Iterable[str]) -> Iterable[str]:
    """Yield what is resumed and what has changed since the state was saved, a sentence each. notes:
    of the components.
    """
    inside = saved["inside"]
    done = "" if inside is None else f", after {inside['steps']} steps of it"
    yield (
        f"resuming training from epoch {saved['epoch'] + 1}{done}, with {saved['steps']} steps "
        f"taken by the run in {run.resume.source.directory}"
    )
    epochs = tree.at(run.config, "train.num_epochs") or 0
    if saved["epoch"] >= epochs > 0:
        yield f"train.num_epochs={epochs}, and all are trained: raise it to train further"
    yield from notes
    old, new = saved["world_size"], run.plan.world_size
    if old != new:
        added = f"ranks {old} to {new - 1} begin" if new > old + 1 else f"rank {old} begins"
        ranks = f"{added} new random streams" if new > old else ""
        yield f"world size: {old} -> {new}" + (f"; {ranks}" if ranks else "")
    if saved["samples_per_step"] != run.plan.samples_per_step:
        yield f"samples per step: {saved['samples_per_step']} -> {run.plan.samples_per_step}"
    rates = [
        entry["lr"]
        for _, optimizer in host_algo.named_optimizers(model)
        for entry in optimizer.param_groups
    ]
    yield f"learning rate: {', '.join(f'{rate:g}' for rate in rates)}, as saved"
    scheduled = [*schedule.present_rates(model)]
    if len(scheduled) == len(rates) and not np.allclose(scheduled, rates, rtol=1e-4, atol=1e-12):
        yield (
            "learning rate: the schedule of the present config is longer or shorter, and gives "
            f"{', '.join(f'{rate:g}' for rate in scheduled)} at this step; it is followed from the "
            "next step on"
        )
    configured = [list(pair) for pair in run.built.learning_rates]
    if configured != saved["learning_rates"]:
        yield (
            "learning rate: the present config and ranks would give "
            f"{', '.join(f'{after:g}' for _, after in configured)} to a new run; one that resumes "
            "keeps its own. For another rate begin a new run from its weights: "
            "experiment.ckpt_path=CHECKPOINT"
        )
