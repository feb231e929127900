"""The command `robomimic-ddp bench data`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from robomimic_ddp import env
from robomimic_ddp.bench import data, data_memory, data_octo, data_plot, data_targets
from robomimic_ddp.bench.data_set import DEFAULT_FOLDER, DataJob, bytes_per_frame
from robomimic_ddp.bench.output import tell, write_rows
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, UsageError
from robomimic_ddp.rlds.resampling import DEFAULT_FILTER, FILTERS

SIZES = ("128x128:128x128:lanczos3", "180x320:128x128:bilinear", "180x320:128x128:lanczos3")
FAST_SIZE = "360x640:128x128"
"""Where decoding at a reduced scale is possible: half of it is still larger than delivered."""
STEPS, QUICK_STEPS = 40, 20
BUFFER, QUICK_BUFFER = 2000, 500
QUICK, LONG = (2, 0.1), (15, 0.5)
"""Rounds, and seconds of a turn."""
QUICK_WORLDS = (data.WORLDS[0], data.WORLDS[-1])
_SIZE = re.compile(r"(\d+)x(\d+):(\d+)x(\d+)(?::(\w+))?")


def _told(worlds: Sequence[int], between: str = " ") -> str:
    return between.join(map(str, worlds))


_QUICK = f"{QUICK[0]} short rounds of the first size with {_told(QUICK_WORLDS, ' and ')} ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `robomimic-ddp bench data`."""
    add = parser.add_argument
    add("--quick", action="store_true", help=_QUICK)
    add("--json", metavar="FILE", help="also write the rows as JSON")
    add("--plot", metavar="FILE.png", help="also draw them")
    add("--check", action="store_true", help="exit code 1 where a target is missed")
    add("--data", metavar="FOLDER", default=DEFAULT_FOLDER, help="where data sets are kept")
    what = f"stored:delivered, and :filter where it is not {DEFAULT_FILTER}; {' '.join(SIZES)}"
    add("--sizes", nargs="+", metavar="HxW:HxW", help=what)
    add("--worlds", nargs="+", type=int, help=f"numbers of ranks; {_told(data.WORLDS)}")
    add("--rounds", type=int, help=f"turns of each loader; {LONG[0]}")
    add("--seconds", type=float, help=f"of a turn, at least; {LONG[1]:g}")
    add("--episodes", type=int, default=200, help="default 200")
    add("--steps", type=int, help=f"of an episode; {STEPS}, with --quick {QUICK_STEPS}")
    add("--batch", type=int, default=32, help="windows in a batch; default 32")
    add("--frame-stack", type=int, default=2, help="frames in a window; default 2, as hosts have")
    what = f"windows in the job's shuffle buffers; {BUFFER}, with --quick {QUICK_BUFFER}"
    add("--buffer", type=int, help=what)
    add("--threads", type=int, help="of each process; the machine's cores")
    add("--fast-decode", action="store_true", help=f"also ddp.fast_decode, at {FAST_SIZE}")
    add("--octo", action="store_true", help="also the real octo and dlimp, where Python finds them")
    add("--memory", action="store_true", help="only our loader's memory over many small batches")
    add("--batches", type=int, default=data_memory.BATCHES, help="of --memory; default 20000")


def run(args: argparse.Namespace) -> int:
    """Measures, prints tables and targets. Raises UsageError and ConfigError."""
    jobs = _jobs(args)
    if args.memory:
        row = data_memory.measure(jobs[0], args.batches)
        print("\n".join(data_memory.lines(row)))
        write_rows(args.json, [row])
        return EXIT_REFUSED if args.check and not row["is_flat"] else EXIT_DONE
    if args.octo:
        data_octo.require()
    rounds, seconds = QUICK if args.quick else LONG
    rounds, seconds = args.rounds or rounds, args.seconds or seconds
    rows, missed = [], 0
    for job in jobs:
        loaders = _loaders(args, job)
        measured = data.measure(job, args.worlds, rounds, seconds, loaders, tell)
        found = data.rows(job, measured)
        reached = list(data_targets.targets(measured))
        missed += sum(not target.is_reached for target in reached)
        rows += found
        print()
        print("\n".join(data.describe(job, bytes_per_frame(job))))
        print("\n".join(data.table(found)))
        print("\n".join(target.line() for target in reached), flush=True)
        write_rows(args.json, rows)
    if args.plot:
        data_plot.plot(rows, args.plot)
    return EXIT_REFUSED if args.check and missed else EXIT_DONE


def _loaders(args: argparse.Namespace, job: DataJob) -> list[str]:
    """octo knows one filter only: beside others it is left out."""
    more = [data.FAST] * args.fast_decode
    if args.octo and job.filter == data_octo.FILTER:
        more.append(data.OCTO)
    elif args.octo:
        tell(f"octo is left out: it resizes by {data_octo.FILTER}, not by {job.filter}")
    return [*data.LOADERS, *more]


def _jobs(args: argparse.Namespace) -> list[DataJob]:
    threads = env.usable_cores() if args.threads is None else args.threads
    if args.steps is None:
        args.steps = QUICK_STEPS if args.quick else STEPS
    if args.buffer is None:
        args.buffer = QUICK_BUFFER if args.quick else BUFFER
    if args.worlds is None:
        args.worlds = QUICK_WORLDS if args.quick else data.WORLDS
    checked = {name: getattr(args, name) for name in ("episodes", "steps", "batch", "buffer")}
    checked |= {"frame-stack": args.frame_stack, "threads": threads, "batches": args.batches}
    checked |= {"worlds": min(args.worlds)}
    for name in ("rounds", "seconds"):
        if getattr(args, name) is not None:
            checked[name] = getattr(args, name)
    for name, value in checked.items():
        if value <= 0:
            raise UsageError(f"--{name} {value}: expected more than 0.")
    if args.episodes * args.steps < args.batch * max(args.worlds):
        raise UsageError(
            f"--episodes {args.episodes} --steps {args.steps}: fewer windows than a step of "
            f"{max(args.worlds)} ranks with --batch {args.batch}. Ask for more of them."
        )
    sizes = args.sizes or (SIZES[:1] if args.quick else SIZES)
    if args.memory and not args.sizes:
        sizes = (data_memory.SIZE,)
    elif args.fast_decode and not args.sizes:
        sizes = (FAST_SIZE,)
    return [
        DataJob(
            args.data,
            stored,
            target,
            args.episodes,
            args.steps,
            args.batch,
            args.frame_stack,
            args.buffer,
            threads,
            name,
        )  # fmt: skip
        for stored, target, name in map(_size, sizes)
    ]


def _size(text: str) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Stored and delivered height and width, and the filter."""
    found = _SIZE.fullmatch(text)
    numbers = [int(number) for number in found.groups()[:4]] if found else []
    name = (found.group(5) or DEFAULT_FILTER) if found else ""
    if not numbers or not all(numbers) or name not in FILTERS:
        raise UsageError(
            f"--sizes {text}: expected such as {SIZES[1]} (stored:delivered:filter; filters: "
            f"{', '.join(FILTERS)})."
        )
    return (numbers[0], numbers[1]), (numbers[2], numbers[3]), name
