"""What a rank that trains on RLDS data costs before its first batch, and in memory.

    python -m scripts.bench.start [--beside CHECKOUT]

Each turn is a new process, and the one that it starts to read: processor time until the first
batch, and their proportional memory (PSS, shared pages divided) after some. CHECKOUT, with another
version of this project, takes turns with this one.
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
from scripts.bench.data_set import DEFAULT_FOLDER, PREPARED, DataJob, write_if_missing

ROOT = Path(__file__).resolve().parents[2]
BATCHES, ROUNDS = 40, 5
# What every version has.
WORKER = """
import itertools, json, os, re, sys
from pathlib import Path
from scripts.bench.data_set import DataJob, open_dataset
from robomimic_ddp.data.rlds.loaders.make import make_loader

settings = json.loads(sys.argv[1])
job = DataJob(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})
loader = make_loader(open_dataset(job), job.batch, 0, 1, 1, cores=2)
next(iter(loader))
children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
family = [Path("/proc/self"), *(Path("/proc", pid) for pids in children for pid in pids)]
stats = [(process / "stat").read_text().rpartition(")")[2].split() for process in family]
cpu = sum(int(of_one[11]) + int(of_one[12]) for of_one in stats) / os.sysconf("SC_CLK_TCK")
for _ in itertools.islice(loader, int(sys.argv[2])):
    pass
maps = [(process / "smaps_rollup").read_text() for process in family]
pss = sum(int(re.search(r"^Pss: +([0-9]+)", text, re.M)[1]) for text in maps) / 1000
print(json.dumps({"cpu_seconds": cpu, "pss_mb": pss}))
"""


def turn(job: DataJob, checkout: Path, batches: int = BATCHES) -> dict[str, float]:
    """Return processor seconds until the first batch, and MB after `batches`."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(vars(job)), str(batches)],
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
    for job in (source, replace(source, prepared=True)):
        write_if_missing(job)
        results = turns.take_turns(checkouts, rounds, partial(turn, job))
        rows = [
            {
                "checkout": str(checkout),
                "data": PREPARED if job.prepared else "source",
                **{name: statistics.median(t[name] for t in answers) for name in answers[0]},
            }
            for checkout, answers in results.items()
        ]
        yield rows, map(_line, rows)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['data']}, {row['checkout']}: {row['cpu_seconds']:.2f} s of processor time until the "
        f"first batch, {row['pss_mb']:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
