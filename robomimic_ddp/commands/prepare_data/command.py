"""The command line of `robomimic-ddp prepare-data`."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from contextlib import nullcontext
from typing import Any

from robomimic_ddp.config import env, machine, options, paths
from robomimic_ddp.config.rlds_keys import DEFAULTS, IMAGE_FILTERS
from robomimic_ddp.data.rlds.reading_progress import gb, reading
from robomimic_ddp.errors import EXIT_DONE, DataError, RobomimicDDPError, UsageError
from robomimic_ddp.terminal import say

QUALITY = 95
_SPARE = 1.05
"""Disk space asked for, over the estimate."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the command's arguments."""
    parser.add_argument("source", help="the RLDS dataset's folder, <name>/<version>")
    parser.add_argument(
        "destination", help="the folder to write <name>/<version> into: train.data_path"
    )
    parser.add_argument(
        "--size", type=_size, required=True, metavar="HxW", help="observation.image_dim, as 128x128"
    )
    parser.add_argument(
        "--filter",
        choices=IMAGE_FILTERS,
        default=DEFAULTS["observation.image_filter"],
        help="observation.image_filter; default %(default)s",
    )
    parser.add_argument(
        "--cameras",
        nargs="+",
        metavar="NAME",
        help="features, or keys of the schema, to keep; others are dropped",
    )
    parser.add_argument("--schema", help="keep its cameras; default: all cameras of the dataset")
    parser.add_argument(
        "--config",
        metavar="JSON",
        help="a training config: keep its cameras, and make its index and statistics meanwhile",
    )
    parser.add_argument(
        "--quality", type=int, default=QUALITY, help="of JPEG, 1 to 100; default %(default)s"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads of this task; default its cores"
    )
    parser.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="leave out damaged episodes and count them (ddp.skip_corrupt)",
    )


def run(command: str, args: argparse.Namespace) -> int:
    """Writes this task's files of the prepared set; the last task to finish completes it.

    Under torchrun, or in a Slurm array, each task has its files. Tasks exchange nothing. Raises
    DataError, ConfigError, UsageError, WriteError.
    """
    for name, value, most in (("quality", args.quality, 100), ("workers", args.workers, 4096)):
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"--{name} {value}: expected a whole number from 1 to {most}.")
    env.quiet_tensorflow()
    launch = env.read_launch_env()
    task, tasks = env.task_of_job(launch)
    once = say if launch.rank == 0 else lambda *_: None
    from robomimic_ddp.commands.prepare_data import writing

    try:
        job = _job(args, launch)
        if job.is_complete():
            job.tidy()
            once(f"{job.target} is there already, prepared from {job.source.folder} like this.")
            return EXIT_DONE
        once(_headline(job))
        found = writing.sample(job)
        _require_space(job, found.ratio, once)
        job.begin(job.notes(found.psnr))
    except RobomimicDDPError as error:
        if launch.local_rank > 0:  # the node's first rank prints it
            error.on_all_ranks()
        raise
    if job.is_complete():  # by other tasks, in the meantime
        shutil.rmtree(job.work, ignore_errors=True)
        return EXIT_DONE
    own = [file for file in job.files[task::tasks] if job.note_of(file) is None]
    total = sum(file.size for file in own)
    if tasks > 1 and launch.rank == 0:
        once(f"task {task + 1} of {tasks}: {len(own)} files to write, {total / 1e9:.3g} GB to read")
    began, shown = time.process_time(), reading(f"preparing {job.source.name}", total)
    try:
        with shown if launch.rank == 0 else nullcontext(lambda count: None) as add:
            images = writing.write_all(job, own, add)
        if images:
            cost = 1000 * (time.process_time() - began) / images
            once(f"{images} images encoded, {cost:.2f} CPU seconds per 1000")
    except RobomimicDDPError:
        if not job.is_complete():  # else another job has written the same set
            raise
    if job.complete():
        _report(job)
    else:
        once(_unfinished(job))
    return EXIT_DONE


def _job(args: argparse.Namespace, launch: env.LaunchEnv) -> Any:
    from robomimic_ddp.commands.inspect_data import survey
    from robomimic_ddp.commands.inspect_data.job_data import rlds_config
    from robomimic_ddp.commands.prepare_data.job import Job
    from robomimic_ddp.data.rlds import host_datasets
    from robomimic_ddp.data.rlds.index.source import Source
    from robomimic_ddp.data.rlds.pipeline.images import PictureSize

    given = {"skip_corrupt": True} if args.skip_corrupt else {}
    skip = options.resolve(given, launch.option_texts).values.skip_corrupt
    path, root = paths.expanded(args.source), paths.expanded(args.destination)
    if not path.is_dir():
        raise DataError(
            f"{path} is no folder. Name the folder of a dataset that tensorflow-datasets has "
            "prepared, as <name>/<version>."
        )
    reason = paths.why_not_writable(root)
    if reason is not None:
        raise UsageError(f"{args.destination!r} cannot be written to: {reason}.")
    source = Source(survey.find(path), skip_missing=skip)
    fields, names = None, args.cameras
    if args.config:
        config, keys = rlds_config(args.config)
        fields = host_datasets.fields_from_config(config, source, keys)
        names = names or (None if args.schema else list(fields.images.values()) or None)
    kept, dropped = _cameras(source, names, args.schema)
    if fields:
        lost = [key for key, place in fields.images.items() if place not in kept]
        if lost:
            raise UsageError(
                f"{args.config} trains with {lost[0]!r} ({fields.images[lost[0]]}), which "
                "--cameras or --schema leaves out. Name it too, or leave them out."
            )
    threads = args.workers or max(1, machine.usable_cores() // launch.local_world_size)
    size = PictureSize(*args.size, args.filter)
    job = Job(source, root, size, args.quality, kept, dropped, skip, threads, fields)
    most = max(math.inf if None in one else math.prod(one) for one in job.stored.values())
    if math.prod(size.pixels) > most:
        stored = ", ".join(f"{name} {one[0]}x{one[1]}" for name, one in job.stored.items())
        raise UsageError(
            f"--size {args.size[0]}x{args.size[1]} has more pixels than any camera of "
            f"{source.folder} ({stored}): the set would be larger, and no better. Give "
            "observation.image_dim of the runs, height first; a run enlarges images itself."
        )
    return job


def _cameras(
    source: Any, names: list[str] | None, schema: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The cameras to keep, and other image features, which are dropped if any camera was asked for.
    Raises DataError, ConfigError.
    """
    from robomimic_ddp.data.rlds.schema.features import is_picture, place_of, step_features
    from robomimic_ddp.data.rlds.schema.spec import DEFAULT, load_schema

    where = str(source.folder)
    steps = step_features(source.features, where)
    pictures = {name: one for name, one in steps.items() if is_picture(one)}
    known = {k: one.feature for k, one in load_schema(schema or DEFAULT).cameras.items()}
    kept = set(pictures)
    if names or schema:
        asked = [known.get(name, name) for name in names or known]
        found = [
            place_of(name, pictures) or place_of(f"observation.{name}", pictures) for name in asked
        ]
        missing = [name for name, place in zip(asked, found) if place is None]
        if missing and (names or len(missing) == len(found)):
            raise DataError(
                f"{where} has no camera {missing[0]!r}: found {', '.join(pictures) or 'none'}. "
                "Name its features by --cameras, or a schema that fits by --schema."
            )
        kept = {place for place in found if place is not None}
    if not kept:
        raise DataError(f"{where} has no colour images, so there is nothing to prepare.")
    images = [name for name, one in steps.items() if type(one).__name__ == "Image"]
    dropped = [name for name in images if name not in kept] if names or schema else []
    return tuple(sorted(kept)), tuple(sorted(dropped))


def _require_space(job: Any, ratio: float, say: Any) -> None:
    """Raises DataError if the unfinished files of all tasks would not fit on the disk."""
    left = [file.size for file in job.files if job.note_of(file) is None]
    needed = sum(left) * ratio
    folder = next(one for one in (job.work, *job.work.parents) if one.is_dir())
    free = shutil.disk_usage(folder).free
    say(f"about {gb(needed)} to write ({ratio:.0%} of {gb(sum(left))}); {gb(free)} are free")
    if needed * _SPARE > free:
        raise DataError(
            f"{folder} has {gb(free)} free, and about {gb(needed * _SPARE)} are needed for the "
            f"{len(left)} files that are left. Nothing was written. Free disk space, name another "
            "DEST, drop cameras (--cameras), or lower --size or --quality."
        )


def _headline(job: Any) -> str:
    episodes = sum(file.episodes for file in job.files)
    dropped = f"; dropped: {', '.join(job.dropped)}" if job.dropped else ""
    height, width = job.size.pixels
    return (
        f"{job.source.folder} -> {job.target}: {len(job.files)} files, {episodes} episodes; "
        f"{', '.join(job.cameras)} to {height}x{width} ({job.size.filter}, JPEG quality "
        f"{job.quality}){dropped}"
    )


def _report(job: Any) -> None:
    from robomimic_ddp.data.rlds.index import prepared
    from robomimic_ddp.data.rlds.index.cache import IN_SET

    notes = prepared.read(job.target) or {}
    lost = sum(len(one) for split in notes["left_out"].values() for one in split.values())
    if lost:
        say(f"warning: {lost} damaged episodes are left out", file=sys.stderr)
    size = sum(file.stat().st_size for file in job.target.iterdir())
    say(f"{job.target}: {gb(size)}; {prepared.quality(notes)}")
    if (job.target / IN_SET).is_dir():
        say(f"{job.target / IN_SET}: index and statistics for the keys of the config")
    say(f"train with train.data_path={job.root.absolute()}")


def _unfinished(job: Any) -> str:
    left = sum(job.note_of(file) is None for file in job.files)
    return (
        f"this task's files are finished; {left} of {len(job.files)} are left to other tasks. The "
        "last one completes the set. If none is running any more, run the command again."
    )


def _size(text: str) -> tuple[int, int]:
    """For argparse: "HxW" as (height, width)."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and 1 <= min(int(height), int(width))):
        raise argparse.ArgumentTypeError(f"{text!r}: expected height x width, such as 128x128")
    return int(height), int(width)
