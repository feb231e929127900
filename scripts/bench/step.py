"""Training steps of the unedited host, of ours, and of DDP written by hand, measured in turn.

    python -m scripts.bench.step [--quick] [--ranks 2] [--device cuda]

Each variant has separate processes, one for each rank, with the edited or unedited host. The time
of a step is that of the slowest rank. `--ranks` adds accelerate and Lightning Fabric where they are
installed (`pip install accelerate lightning-fabric`).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robomimic_ddp.config import env, options
from robomimic_ddp.errors import ConfigError, OptionError
from robomimic_ddp.terminal import table, whole_number, width
from scripts.bench import turns
from scripts.bench.ranks import Ranks

CHECKOUT = Path(__file__).resolve().parents[2]
WORKER = "scripts.bench.step_worker"
HOST, OURS, BY_HAND = "host", "ours", "hand_written_ddp"
ACCELERATE, FABRIC = "accelerate", "lightning_fabric"
"""Named as their packages are imported."""
ROUNDS, QUICK_ROUNDS = 30, 5
CAMERAS_ON_CUDA = (0, 2)
STEPS_ON_CUDA = 10
"""Steps that are timed together: synchronising after each would hide asynchronous work."""
_WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """A step: `batch` samples on each rank, through the host's diffusion policy with `down_dims`
    channels (empty: the host's) and `cameras` images of 128x128.
    """

    batch: int
    threads: int
    down_dims: tuple[int, ...] = ()
    cameras: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Variant:
    """Who takes the step (HOST, OURS, BY_HAND, ACCELERATE or FABRIC), on `ranks` ranks; `options`
    of ours.
    """

    name: str
    options: dict[str, str] = field(default_factory=dict)
    ranks: int = 1

    @property
    def label(self) -> str:
        """Name and options, for tables."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


ON_CPU = (Variant(HOST), Variant(OURS, {"preset": "safe"}), Variant(OURS, {"preset": "fast"}))
ON_CUDA = (
    Variant(HOST),
    Variant(OURS, {"preset": "safe"}),
    Variant(OURS),
    Variant(OURS, {"mode": "ddp"}),  # NCCL, with one rank
    Variant(OURS, {"preset": "max", "precision": "fp32", "compile": "false"}),  # TF32
    Variant(OURS, {"precision": "bf16"}),
)
COMPILED = (
    Variant(HOST),
    Variant(OURS, {"precision": "bf16", "compile": "true"}),
    Variant(OURS, {"precision": "bf16", "compile": "reduce-overhead"}),
)
"""Apart from ON_CUDA, and after it: compiling takes minutes."""


def on_ranks(count: int) -> tuple[Variant, ...]:
    """Return the host in one process, then the peers that are installed and ours on `count`
    ranks.
    """
    installed = [name for name in (ACCELERATE, FABRIC) if importlib.util.find_spec(name)]
    return Variant(HOST), *(Variant(name, ranks=count) for name in (BY_HAND, *installed, OURS))


class Team:
    """The ranks of one variant, which take steps on request, until `stack` closes."""

    def __init__(self, job: Job, variant: Variant, stack: ExitStack) -> None:
        self.variant = variant
        self._ranks = Ranks(variant.label, variant.ranks, stack)
        for rank in range(variant.ranks):
            self._start(job, rank)
        self.parameters = self.samples = 0

    def meet(self) -> None:
        """Wait until the processes can take steps. Raises ConfigError if a rank has ended."""
        first = self._ranks.answers()[0]
        self.parameters, self.samples = first["parameters"], first["samples"] * self.variant.ranks

    def _start(self, job: Job, rank: int) -> None:
        name, options = self.variant.name, self.variant.options
        added = {"OMP_NUM_THREADS": str(job.threads)}
        added |= {f"ROBOMIMIC_DDP_{key.upper()}": value for key, value in options.items()}
        if name not in (HOST, OURS) or self.variant.ranks > 1 or options.get("mode") == "ddp":
            added |= self._ranks.launcher_variables(rank)
            added |= {"GROUP_RANK": "0"} if name == FABRIC else {}  # else it starts ranks itself
        else:
            added.setdefault("ROBOMIMIC_DDP_MODE", "single")
        launcher = ["robomimic_ddp", "run"] if name == OURS else []
        words = json.dumps({**asdict(job), "variant": name, "rank": rank})
        variables = {**env.child_environment([str(CHECKOUT)]), **added}
        self._ranks.start([*launcher, WORKER, words], variables)

    def step(self, count: int, request: str = "time") -> list[dict[str, Any]]:
        """Time `count` steps on each rank, or "profile" them. Raises ConfigError if a rank has
        ended.
        """
        return self._ranks.ask(f"{request} {count}")


def measure(job: Job, rounds: int, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return a row for each variant: medians over `rounds` of steps taken in turn, after some to
    warm up.

    cpu_seconds_per_step: the mean over ranks; peak_rss_mb: of the largest rank; loss: of the main
    rank's last step; times: ratio of our samples per second to another variant's over rounds, by
    wall time and by processor time; gpu_busy: share of time in which the main rank's GPU computes;
    graph_breaks: in what was compiled.
    """
    count = 1 if job.device == "cpu" else STEPS_ON_CUDA
    with ExitStack() as stack:
        teams = [Team(job, variant, stack) for variant in variants]
        for team in teams:  # all have been started: their imports overlap
            team.meet()
        results = turns.take_turns(teams, _WARM_UP + rounds, lambda team: team.step(count))
        profiles = [team.step(count, "profile")[0] for team in teams]
    steps = [answers[_WARM_UP:] for answers in results.values()]
    walls = [[max(rank["wall"] for rank in ranks) for ranks in answers] for answers in steps]
    cpus = [
        [statistics.mean(rank["cpu"] for rank in ranks) for ranks in answers] for answers in steps
    ]
    rows = []
    for team, answers, profile, wall, cpu in zip(teams, steps, profiles, walls, cpus):
        rate = 1 / statistics.median(wall)
        row = {
            "variant": team.variant.name,
            "world": team.variant.ranks,
            "options": team.variant.options,
            "device": job.device,
            "cameras": job.cameras,
            "parameters": team.parameters,
            "rounds": rounds,
            "steps_per_second": rate,
            "samples_per_second": rate * team.samples,
            "cpu_seconds_per_step": statistics.median(cpu),
            "peak_rss_mb": max(rank["peak_rss_mb"] for rank in answers[-1]),
            "device_peak_mb": answers[-1][0]["device_peak_mb"],
            **profile,
            "loss": answers[-1][0]["loss"],
            "times": {},
        }
        rows.append(row)
        for base, base_wall, base_cpu in zip(teams, walls, cpus):
            if team.variant.name == OURS != base.variant.name:
                factor = team.samples / base.samples
                rank_factor = factor * base.variant.ranks / team.variant.ranks
                row["times"][base.variant.name] = {
                    "clock": turns.ratio([seconds * factor for seconds in base_wall], wall),
                    "processor": turns.ratio([seconds * rank_factor for seconds in base_cpu], cpu),
                }
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table and the ratios, for the terminal."""
    labels = [Variant(row["variant"], row["options"]).label for row in rows]
    titles = (
        "variant",
        "ranks",
        " steps/s",
        "samples/s",
        "CPU s/step",
        "peak RSS",
        "peak GPU",
        "GPU busy",
        "graph breaks",
    )
    cells = [
        (
            label,
            f"{row['world']:5}",
            f"{row['steps_per_second']:8.3f}",
            f"{row['samples_per_second']:9.1f}",
            f"{row['cpu_seconds_per_step']:10.3f}",
            f"{row['peak_rss_mb']:5.0f} MB",
            f"{row['device_peak_mb']:5.0f} MB",
            f"{row['gpu_busy']:8.0%}",
            f"{row['graph_breaks']:12}",
        )
        for label, row in zip(labels, rows)
    ]
    columns = slice(None if rows[0]["device"] != "cpu" else -3)
    yield from table([row[columns] for row in (titles, *cells)], width())
    yield f"{rows[0]['parameters'] / 1e6:.1f} M parameters, medians of {rows[0]['rounds']} rounds"
    for label, row in zip(labels, rows):
        for base, times in row["times"].items():
            yield (
                f"{label}: {turns.shown(times['clock'])} times the samples/s of {base}, "
                f"{turns.shown(times['processor'])} by processor time (in brackets: 95 %)"
            )


def channels(text: str) -> tuple[int, ...]:
    """Read --down-dims."""
    return tuple(map(whole_number(1), text.split(",")))


def our_options(text: str) -> dict[str, str]:
    """Read --option. Refuses wrong options here, where the message is seen."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        options.resolve(command_line=values)
    except OptionError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
    return values


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for each number of cameras, and return the exit code."""
    parser = turns.parser(__doc__.partition("\n")[0], ROUNDS, QUICK_ROUNDS)
    add, count = parser.add_argument, whole_number(1)
    add("--batch", type=count, default=16, help="samples of a rank in a step; default 16")
    add("--threads", type=count, default=1, help="of each process; default 1")
    add("--ranks", type=count, default=1, help="ours on N ranks next to DDP written by hand")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU, in 32 and 16 bits")
    what = "ours with these options, too; may be given several times"
    add("--option", action="append", type=our_options, default=[], metavar="A=B,C=D", help=what)
    what = "pictures in an observation; default 0, on a GPU 0 and 2"
    add("--cameras", type=whole_number(0), help=what)
    what = "channels of the net; default the host's"
    add("--down-dims", type=channels, default=(), metavar="N,N", help=what)
    args = parser.parse_args(argv)
    if args.ranks > 1 and args.device == "cuda":
        parser.error(f"--ranks {args.ranks} --device cuda: one GPU is measured, leave --ranks out")
    return turns.report(_tables(args), args.json)


def _tables(args: argparse.Namespace) -> Iterator[turns.Table]:
    sets = [ON_CPU if args.ranks == 1 else on_ranks(args.ranks)]
    cameras = [args.cameras or 0]
    if args.device == "cuda":
        _require_gpu()
        sets = [ON_CUDA, COMPILED]
        cameras = CAMERAS_ON_CUDA if args.cameras is None else [args.cameras]
    sets[0] = (*sets[0], *(Variant(OURS, values, args.ranks) for values in args.option))
    for count, variants in itertools.product(cameras, sets):
        job = Job(args.batch, args.threads, args.down_dims, count, device=args.device)
        rows = measure(job, args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS), variants)
        title = f"{args.batch} samples on each rank, {count} cameras, {args.device}"
        yield rows, [title, *lines(rows)]


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device here (`robomimic-ddp "
            "doctor` says why). Run it on a machine with a GPU; without --device the CPU is "
            "measured."
        )


if __name__ == "__main__":
    sys.exit(main())
