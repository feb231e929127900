"""What a rank that trains on RLDS data costs before its first batch, in memory, and for a frame.

    python -m scripts.bench.start [--beside CHECKOUT]

Each turn is a new process, and the one that it starts to read: processor time until the first
batch, their proportional memory (PSS, shared pages divided) after some, then processor time for
1000 camera frames. CHECKOUT, with another version of this project, takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from robomimic_ddp.config import env
from scripts.bench import turns
from scripts.bench.loading.data_set import DEFAULT_FOLDER, PREPARED, DataJob, write_if_missing

ROOT = Path(__file__).resolve().parents[2]
BATCHES, MEASURED, ROUNDS = 40, 160, 9
# What every version has.
WORKER = """
import itertools, json, os, re, sys
from pathlib import Path
from robomimic_ddp.data.rlds.loaders.make import make_loader
try:
    from scripts.bench.loading.data_set import DataJob, open_dataset
except ImportError:  # an earlier version
    from scripts.bench.data_set import DataJob, open_dataset

settings = json.loads(sys.argv[1])
job = DataJob(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})
loader = make_loader(open_dataset(job), job.batch, 0, 1, 1, cores=2)
next(iter(loader))
children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
family = [Path("/proc/self"), *(Path("/proc", pid) for pids in children for pid in pids)]

def cpu():
    stats = [(process / "stat").read_text().rpartition(")")[2].split() for process in family]
    return sum(int(of_one[11]) + int(of_one[12]) for of_one in stats) / os.sysconf("SC_CLK_TCK")

def read(batches):
    frames = sum(job.batch * job.frames_per_sample for _ in itertools.islice(endless, batches))
    return max(frames, 1)

endless = (batch for _ in itertools.count() for batch in loader)
started = cpu()
read(int(sys.argv[2]))
maps = [(process / "smaps_rollup").read_text() for process in family]
pss = sum(int(re.search(r"^Pss: +([0-9]+)", text, re.M)[1]) for text in maps) / 1000
before = cpu()
frames = read(int(sys.argv[3]))
taken = 1000 * (cpu() - before) / frames
print(json.dumps({"cpu_seconds": started, "pss_mb": pss, "cpu_seconds_per_1000_frames": taken}))
"""


def turn(
    job: DataJob, checkout: Path, batches: int = BATCHES, measured: int = MEASURED
) -> dict[str, float]:
    """Return processor seconds until the first batch, MB after `batches`, and processor seconds for
    1000 frames over the next `measured` ones.
    """
    done = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(vars(job)), *map(str, (batches, measured))],
        cwd=checkout,
        env=env.child_environment([str(checkout)]),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each checkout and dataset, and return the exit code."""
    parser = turns.parser(__doc__.partition("\n\n")[0], ROUNDS, 2)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="of another version")
    parser.add_argument("--data", metavar="FOLDER", default=DEFAULT_FOLDER, help="of datasets")
    args = parser.parse_args(argv)
    return turns.report(_tables(args), args.json)


def _tables(args: argparse.Namespace) -> Any:
    checkouts = [*([args.beside.resolve()] if args.beside else []), ROOT]
    rounds = args.rounds or (2 if args.quick else ROUNDS)
    source = DataJob(args.data, (180, 320), (128, 128), threads=2)
    as_stored = replace(source, stored=source.target)
    jobs = {"source": source, PREPARED: replace(source, prepared=True), "as stored": as_stored}
    for name, job in jobs.items():
        write_if_missing(job)
        results = turns.take_turns(checkouts, rounds, partial(turn, job))
        rows = [
            {
                "checkout": str(checkout),
                "data": name,
                **{kind: statistics.median(t[kind] for t in answers) for kind in answers[0]},
                "over_the_first": {
                    kind: turns.ratio(
                        [t[kind] for t in answers], [t[kind] for t in results[checkouts[0]]]
                    )
                    for kind in answers[0]
                },
            }
            for checkout, answers in results.items()
        ]
        yield rows, map(_line, rows)


def _line(row: dict[str, Any]) -> str:
    ratio = turns.shown(row["over_the_first"]["cpu_seconds_per_1000_frames"])
    return (
        f"{row['data']}, {row['checkout']}: {row['cpu_seconds']:.2f} s of processor time until the "
        f"first batch, {row['pss_mb']:.0f} MB, {row['cpu_seconds_per_1000_frames']:.3f} s for 1000 "
        f"frames, over the first checkout's {ratio}"
    )


if __name__ == "__main__":
    sys.exit(main())
