"""What DDP and FSDP keep of a policy on each rank, and the time of a step with each.

    python -m scripts.bench.fsdp [--ranks 2 4]

Trains the host's diffusion policy, edited in memory, on the CPU over gloo. More ranks than cores
take turns, so only steps of equally many ranks compare.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from robomimic_ddp.terminal import whole_number
from scripts.bench import step, turns

MODES = ("ddp", "fsdp")
PARTS = ("weights", "gradients", "moments", "averages")
ROUNDS, QUICK_ROUNDS = 10, 2


def measure(job: step.Job, ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each mode. Bytes are those of the rank that keeps most, after a step, by
    part: weights, gradients, the optimizer's moments, averages with the nets' buffers. over_ddp:
    the bytes of all parts, and the time of a step, over DDP's.
    """
    variants = [step.Variant(step.OURS, {"mode": mode}, ranks) for mode in MODES]
    with ExitStack() as stack:
        teams = [step.Team(job, variant, stack) for variant in variants]
        for team in teams:
            team.meet()
        results = turns.take_turns(teams, 1 + rounds, lambda team: team.step(1))
        states = [max(team.step(1, "state"), key=_total) for team in teams]
    walls = [
        [max(rank["wall"] for rank in answers) for answers in measured[1:]]
        for measured in results.values()
    ]
    return [
        {
            "mode": mode,
            "ranks": ranks,
            "parameters": team.parameters,
            "bytes": parts,
            "seconds": statistics.median(wall),
            "over_ddp": {
                "bytes": _total(parts) / _total(states[0]),
                "seconds": turns.ratio(wall, walls[0]),
            },
        }
        for mode, team, parts, wall in zip(MODES, teams, states, walls)
    ]


def _total(parts: dict[str, int]) -> int:
    return sum(parts.values())


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f"{rows[0]['parameters'] / 1e6:.1f} M parameters, MB on the rank that keeps most"
    titles = ("mode", "ranks", *PARTS, "all", "over DDP's", "a step, s", "over DDP's")
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        parts, over = row["bytes"], row["over_ddp"]
        sizes = [parts[part] for part in PARTS]
        cells = [row["mode"], str(row["ranks"])]
        cells += [f"{size / 1e6:.0f}" for size in (*sizes, _total(parts))]
        cells += [f"{over['bytes']:.2f}", f"{row['seconds']:.2f}", turns.shown(over["seconds"])]
        yield f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for each number of ranks, and return the exit code."""
    parser = turns.parser(__doc__.partition("\n")[0], ROUNDS, QUICK_ROUNDS)
    add, count = parser.add_argument, whole_number(1)
    add("--ranks", type=whole_number(2), nargs="+", default=[2, 4], help="default 2 4")
    add("--batch", type=count, default=16, help="samples of a rank in a step; default 16")
    add("--down-dims", type=step.channels, default=(), metavar="N,N", help="channels of the net")
    args = parser.parse_args(argv)
    job = step.Job(args.batch, 1, args.down_dims)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    tables = (measure(job, ranks, rounds) for ranks in args.ranks)
    return turns.report(((rows, lines(rows)) for rows in tables), args.json)


if __name__ == "__main__":
    sys.exit(main())
