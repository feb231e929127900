"""The command line of `robomimic-ddp prepare-data`."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from contextlib import nullcontext
from typing import Any

from rich.filesize import decimal

from robomimic_ddp.config import launch_env, machine, paths
from robomimic_ddp.data.rlds.reading_progress import reading
from robomimic_ddp.errors import EXIT_DONE, DataError, RobomimicDDPError, UsageError
from robomimic_ddp.terminal import say, whole_number

QUALITY = 95


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp prepare-data`."""
    add = parser.add_argument
    add("source", help="the RLDS dataset's folder, <name>/<version>")
    what = "the folder to write <name>/<version> into: train.data_path of the runs"
    add("destination", help=what)
    what = "observation.image_dim of the runs, such as 128x128"
    add("--size", type=image_size, required=True, metavar="HxW", help=what)
    add("--cameras", nargs="+", metavar="NAME", help="image features to keep; default: all")
    what = "JPEG quality, 1 to 100; default %(default)s"
    add("--quality", type=whole_number(1, 100), default=QUALITY, help=what)
    what = "threads to use; default: one per core"
    add("--workers", type=whole_number(1, 4096), metavar="N", help=what)
    what = "leave out damaged episodes and count them"
    add("--skip-corrupt", action="store_true", help=what)


def run(command: str, args: argparse.Namespace) -> int:
    """Write this task's files of the prepared set; the last task to finish completes it.

    Under torchrun, or in a Slurm array, each task writes a share of the files. Tasks exchange
    nothing. Raises DataError, UsageError, WriteError.
    """
    launch = launch_env.read_launch_env()
    task, tasks = launch_env.task_of_job(launch)
    say_once = say if launch.rank == 0 else lambda *_: None
    from robomimic_ddp.commands.prepare_data import writing

    try:
        job = _job(args, launch)
        if job.is_complete():
            job.tidy()
            say_once(
                f"{job.target} is already prepared from {job.source.folder} with these options."
            )
            return EXIT_DONE
        say_once(_headline(job))
        job.begin()
    except RobomimicDDPError as error:
        if launch.local_rank > 0:  # the node's first rank prints it
            error.on_all_ranks()
        raise
    if job.is_complete():  # other tasks have completed it in the meantime
        shutil.rmtree(job.work, ignore_errors=True)
        return EXIT_DONE
    files = [file for file in job.files[task::tasks] if job.note_of(file) is None]
    progress = reading(f"preparing {job.source.name}", sum(file.size for file in files))
    try:
        with progress if launch.rank == 0 else nullcontext(lambda count: None) as add:
            writing.write_all(job, files, add)
    except RobomimicDDPError:
        if not job.is_complete():  # otherwise another job has written the same set
            raise
    if job.complete():
        _report(job)
    else:
        say_once(
            "the files of this task are finished. The last task to finish completes the dataset; "
            "if no other task is still running, run the command again."
        )
    return EXIT_DONE


def _job(args: argparse.Namespace, launch: launch_env.LaunchEnv) -> Any:
    from robomimic_ddp.commands.inspect_data import survey
    from robomimic_ddp.commands.prepare_data.job import Job
    from robomimic_ddp.data.rlds.index.source import Source

    path, root = paths.expanded(args.source), paths.expanded(args.destination)
    if not path.is_dir():
        raise DataError(
            f"{path} is not a folder. Name the folder of a dataset that tensorflow-datasets has "
            "prepared, as <name>/<version>."
        )
    reason = paths.why_not_writable(root)
    if reason is not None:
        raise UsageError(f"{args.destination!r} cannot be written to: {reason}.")
    source = Source(survey.find(path), skip_missing=args.skip_corrupt)
    cameras, dropped = _cameras(source, args.cameras)
    threads = args.workers or max(1, machine.usable_cores() // launch.local_world_size)
    job = Job(source, root, args.size, args.quality, cameras, dropped, args.skip_corrupt, threads)
    largest = max(math.inf if None in shape else math.prod(shape) for shape in job.stored.values())
    if math.prod(args.size) > largest:
        stored = ", ".join(f"{name} {h}x{w}" for name, (h, w) in job.stored.items())
        raise UsageError(
            f"--size {args.size[0]}x{args.size[1]} has more pixels than any camera of "
            f"{source.folder} ({stored}): the result would be larger, and no better. "
            "Give observation.image_dim of the runs, height first; training enlarges images itself."
        )
    return job


def _cameras(source: Any, names: list[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cameras to keep, `names` or all, and the images to drop. Raises DataError."""
    from robomimic_ddp.data.rlds.schema.features import place_of

    pictures = source.cameras
    if not pictures:
        raise DataError(f"{source.folder} has no colour images, so there is nothing to prepare.")
    if not names:
        return tuple(pictures), ()
    cameras = set()
    for name in names:
        camera = place_of(name, pictures) or place_of(f"observation.{name}", pictures)
        if camera is None:
            raise DataError(
                f"{source.folder} has no camera {name!r}, only {', '.join(pictures)}. Give names "
                "of these to --cameras."
            )
        cameras.add(camera)
    images = {name for name, f in source.steps.items() if type(f).__name__ == "Image"}
    return tuple(sorted(cameras)), tuple(sorted(images - cameras))


def _headline(job: Any) -> str:
    episodes = sum(file.episodes for file in job.files)
    dropped = f"; dropped: {', '.join(job.dropped)}" if job.dropped else ""
    height, width = job.size
    return (
        f"{job.source.folder} -> {job.target}: {len(job.files)} files, {episodes} episodes; "
        f"{', '.join(job.cameras)} to {height}x{width}, JPEG quality {job.quality}{dropped}"
    )


def _report(job: Any) -> None:
    from robomimic_ddp.data.rlds.index import prepared

    notes = prepared.read(job.target) or {}
    if count := prepared.damaged(notes):
        say(f"warning: {count} damaged episodes are left out", file=sys.stderr)
    # Of the records alone: another task may be removing the files of `Job.tidy`.
    size = sum((job.target / file.path.name).stat().st_size for file in job.files)
    say(f"{job.target}: {decimal(size)}; {prepared.quality(notes)}")
    name, root = str(job.target.parent.relative_to(job.root)), job.root.absolute()
    say(f"train with train.data_path={root} and {name!r} in train.dataset_names")


def image_size(text: str) -> tuple[int, int]:
    """Return "HxW" as (height, width), for argparse."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and 1 <= min(int(height), int(width))):
        raise argparse.ArgumentTypeError(f"{text!r}: expected height x width, such as 128x128")
    return int(height), int(width)
