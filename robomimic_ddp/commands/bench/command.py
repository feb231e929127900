"""The commands `robomimic-ddp bench step` and `bench data`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator

from robomimic_ddp.commands.bench import data, step
from robomimic_ddp.commands.bench.data_set import DEFAULT_FOLDER, DataJob
from robomimic_ddp.config import machine, options, paths
from robomimic_ddp.config.rlds_keys import IMAGE_FILTERS
from robomimic_ddp.data.rlds.pipeline.resize import DEFAULT_FILTER
from robomimic_ddp.errors import EXIT_DONE, ConfigError, OptionError, UsageError
from robomimic_ddp.terminal import say

STEP_ROUNDS, QUICK_STEP_ROUNDS = 30, 5
CAMERAS_ON_CUDA = (0, 2)
DATA_ROUNDS, QUICK_DATA_ROUNDS = 15, 2
WORLDS, QUICK_WORLDS = (1, 2, 4, 8), (1, 8)
SIZES = ("128x128:128x128:lanczos3", "180x320:128x128:bilinear", "180x320:128x128:lanczos3")
_SIZE = re.compile(r"([1-9]\d*)x([1-9]\d*):([1-9]\d*)x([1-9]\d*)(?::(\w+))?")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp bench`."""
    kinds = parser.add_subparsers(dest="kind", metavar="step|data", required=True)
    what = "a training step of the unedited host against the edited one"
    add = kinds.add_parser("step", help=what).add_argument
    add("--quick", action="store_true", help=f"{QUICK_STEP_ROUNDS} rounds, not {STEP_ROUNDS}")
    add("--rounds", type=int, help="how often each variant takes a step in turn")
    add("--batch", type=int, default=16, help="samples of a rank in a step; default 16")
    add("--threads", type=int, default=1, help="of each process; default 1")
    add("--ranks", type=int, default=1, help="ours on N ranks beside DDP written by hand")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU, in 32 and 16 bits")
    what = "ours with these options, too; may be given several times"
    add("--option", action="append", default=[], metavar="NAME=VALUE[,...]", help=what)
    add("--cameras", type=int, help="pictures in an observation; default 0, on a GPU 0 and 2")
    add("--down-dims", metavar="N,N", default="", help="channels of the net; default the host's")
    add("--json", type=paths.writable, metavar="FILE", help="also write the rows as JSON")
    what = "loading RLDS data: ours, a host's, and the limit"
    add = kinds.add_parser("data", help=what).add_argument
    what = f"{QUICK_DATA_ROUNDS} short rounds of the first size with 1 and 8 ranks"
    add("--quick", action="store_true", help=what)
    add("--data", metavar="FOLDER", default=DEFAULT_FOLDER, help="where datasets are kept")
    what = f"stored:delivered, and :filter where it is not {DEFAULT_FILTER}; {' '.join(SIZES)}"
    add("--sizes", nargs="+", metavar="HxW:HxW", help=what)
    add("--worlds", nargs="+", type=int, metavar="N", help="numbers of ranks; 1 2 4 8")
    add("--rounds", type=int, help=f"turns of each loader; {DATA_ROUNDS}")
    add("--json", type=paths.writable, metavar="FILE", help="also write the rows as JSON")


def run(command: str, args: argparse.Namespace) -> int:
    """Measures, prints tables, and writes the rows after each. Raises UsageError and
    ConfigError.
    """
    least = {"rounds": 1, "batch": 1, "threads": 1, "ranks": 1, "cameras": 0}
    for name, lowest in least.items():
        value = getattr(args, name, None)
        if value is not None and value < lowest:
            raise UsageError(f"--{name} {value}: expected {lowest} or more.")
    rows = []
    for found, lines in (_step if args.kind == "step" else _data)(args):
        for line in lines:
            say(line)
        rows += found
        if args.json:
            try:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"--json {args.json} cannot be written: {error}.") from error
    return EXIT_DONE


def _step(args: argparse.Namespace) -> Iterator[tuple[list[dict], Iterable[str]]]:
    variants = step.ON_CPU if args.ranks == 1 else step.on_ranks(args.ranks)
    cameras = [args.cameras or 0]
    if args.device == "cuda":
        _require_one_gpu(args.ranks)
        variants = step.ON_CUDA
        cameras = CAMERAS_ON_CUDA if args.cameras is None else [args.cameras]
    more = [step.Variant(step.OURS, _options(text), args.ranks) for text in args.option]
    rounds = args.rounds or (QUICK_STEP_ROUNDS if args.quick else STEP_ROUNDS)
    for count in cameras:
        dims = _numbers(args.down_dims)
        job = step.Job(args.batch, args.threads, dims, count, device=args.device)
        rows = step.measure(job, rounds, [*variants, *more])
        title = f"{args.batch} samples on each rank, {count} cameras, {args.device}"
        yield rows, [title, *step.lines(rows)]


def _require_one_gpu(ranks: int) -> None:
    import torch

    if ranks > 1:
        raise UsageError(f"--ranks {ranks} --device cuda: one GPU is measured. Leave --ranks out.")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device here (`robomimic-ddp "
            "doctor` says why). Run it on a machine with a GPU; without --device the CPU is "
            "measured."
        )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--down-dims {text}: expected whole numbers, such as 64,128.")
    return tuple(map(int, parts))


def _options(text: str) -> dict[str, str]:
    """Our options, validated here, since a process of the benchmark would only end."""
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        options.resolve(command_line=found)
    except OptionError as error:
        raise UsageError(f"--option {text}: {error}") from error
    return found


def _data(args: argparse.Namespace) -> Iterator[tuple[list[dict], Iterable[str]]]:
    worlds = args.worlds or (QUICK_WORLDS if args.quick else WORLDS)
    if min(worlds) < 1:
        raise UsageError(f"--worlds {min(worlds)}: expected 1 or more.")
    small = {"steps": 20, "buffer": 500} if args.quick else {}
    jobs = [
        DataJob(args.data, *_size(text), threads=machine.usable_cores(), **small)
        for text in args.sizes or (SIZES[:1] if args.quick else SIZES)
    ]
    rounds = args.rounds or (QUICK_DATA_ROUNDS if args.quick else DATA_ROUNDS)
    for job in jobs:
        rows = data.measure(job, worlds, rounds, 0.1 if args.quick else 0.5)
        yield rows, data.lines(job, rows)


def _size(text: str) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Stored and delivered height and width, and the filter."""
    found = _SIZE.fullmatch(text)
    name = found and (found.group(5) or DEFAULT_FILTER)
    if name not in IMAGE_FILTERS:
        raise UsageError(
            f"--sizes {text}: expected such as {SIZES[1]} (stored:delivered:filter; filters: "
            f"{', '.join(IMAGE_FILTERS)})."
        )
    height, width, *target = map(int, found.groups()[:4])
    return (height, width), tuple(target), name
